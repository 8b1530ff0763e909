"""The end of a generation request: what still lives of it is cancelled, and one line is logged."""

import asyncio
from typing import Any

import structlog

from gateway.http.request_record import RequestRecord
from gateway.routing.request_group import RequestGroup
from gateway.routing.sequence import LiveSequence
from gateway.tracing.traced_request import TracedRequest, TracedSequence
from protocol.events import Usage

_log = structlog.get_logger("gateway.streaming.request_end")


def close_request(group: RequestGroup, record: RequestRecord) -> None:
    """Cancel what still lives of a request, and log how it ended. Synchronous, for a `finally` under cancellation."""
    outcome = "client_gone" if not group.ended else "answered" if group.failure is None else group.failure.code.value
    measures = _measures(group, record)
    traced = None if record.trace is None else _traced(group, outcome)
    group.close()
    _log.info(
        "request_ended",
        request=group.request_id,
        worker=group.worker,
        model=group.named,
        outcome=outcome,
        status=record.status,
        key=record.key_name,
        **measures,
    )
    if record.trace is not None and traced is not None:
        record.trace.ended(traced, record.status)


def _traced(group: RequestGroup, outcome: str) -> TracedRequest:
    sequences = [_traced_sequence(each) for each in group.sequences]
    prompts = [_prompt_tokens(each) for each in group.sequences[:: group.output.per_prompt]]
    known = [count for count in prompts if count is not None]
    return TracedRequest(
        group.request_id,
        group.named,
        outcome,
        streamed=group.streamed,
        prompt_tokens=sum(known) if len(known) == len(prompts) else None,
        cached_tokens=group.token_counts().cached,
        sequences=sequences,
    )


def _prompt_tokens(sequence: LiveSequence) -> int | None:
    """The tokens of the prompt of a sequence, which has ended or was cancelled; None if no worker has counted them."""
    if sequence.usage is not None:
        return sequence.usage.prompt_tokens
    counted = ((each.started, each.resumed) for each in sequence.attempts)
    return next((started.prompt_tokens - resumed for started, resumed in counted if started is not None), None)


def _traced_sequence(sequence: LiveSequence) -> TracedSequence:
    usage = sequence.usage or Usage(0, len(sequence.tokens))
    return TracedSequence(
        index=sequence.index,
        finish="" if sequence.reason is None else str(sequence.reason),
        opened_at=sequence.opened_at,
        queued_s=sequence.queued_s,
        last_at=sequence.last_at,
        completion_tokens=usage.completion_tokens,
        attempts=tuple(sequence.attempts),
        replays=tuple(sequence.replays),
    )


def _measures(group: RequestGroup, record: RequestRecord) -> dict[str, Any]:
    """Tokens and times. A prompt's tokens are known when a sequence of it has ended well, and 0 before."""
    counts = group.token_counts()
    firsts = [sequence.first_at for sequence in group.sequences if sequence.first_at]
    queued = [sequence.queue_s for sequence in group.sequences if sequence.usage is not None]
    total = asyncio.get_running_loop().time() - record.received
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": sum(len(sequence.tokens) for sequence in group.sequences),
        "cached_tokens": counts.cached,
        "queue_s": round(max(queued), 4) if queued else None,
        "first_token_s": round(min(firsts) - record.received, 4) if firsts else None,
        "total_s": round(total, 4),
        "finish": ",".join(sorted({str(each.reason) for each in group.sequences if each.reason is not None})),
    }
