"""The end of a generation request: what still lives of it is cancelled, and one line is logged."""

import asyncio
from typing import Any

import structlog

from gateway.http.request_record import RequestRecord
from gateway.routing.request_group import RequestGroup

_log = structlog.get_logger("gateway.streaming.request_end")


def close_request(group: RequestGroup, record: RequestRecord) -> None:
    """Cancel what still lives of a request, and log how it ended. Synchronous, for a `finally` under cancellation."""
    outcome = "client_gone" if not group.ended else "answered" if group.failure is None else group.failure.code.value
    group.close()
    _log.info(
        "request_ended",
        request=group.request_id,
        worker=group.worker,
        model=group.model,
        outcome=outcome,
        status=record.status,
        key=record.key_name,
        **_measures(group, record),
    )


def _measures(group: RequestGroup, record: RequestRecord) -> dict[str, Any]:
    """Tokens and times. A prompt's tokens are known when a sequence of it has ended well, and 0 before."""
    counts = group.token_counts()
    firsts = [sequence.first_at for sequence in group.sequences if sequence.first_at]
    queued = [sequence.usage.queue_ms for sequence in group.sequences if sequence.usage is not None]
    total = asyncio.get_running_loop().time() - record.received
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": sum(len(sequence.tokens) for sequence in group.sequences),
        "cached_tokens": counts.cached,
        "queue_s": max(queued) / 1000 if queued else None,
        "first_token_s": round(min(firsts) - record.received, 4) if firsts else None,
        "total_s": round(total, 4),
        "finish": ",".join(sorted({str(each.reason) for each in group.sequences if each.reason is not None})),
    }
