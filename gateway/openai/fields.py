"""Fields that whole answers and chunks have in common."""

from typing import Any

import msgspec

from gateway.generation.delta import OutputDelta, PromptDelta, StopReason, TextDelta, TokenCounts
from gateway.streaming.dialect import AnswerHead

FINISH_REASONS = {StopReason.END: "stop", StopReason.LENGTH: "length", StopReason.TOOL_CALLS: "tool_calls"}
"""OpenAI's `finish_reason` for each stop reason."""
_encode = msgspec.json.Encoder().encode


def _fingerprint(config_digest: str) -> str | None:
    """The `system_fingerprint` of a worker: equal ones compute equal tokens."""
    return f"fp_{config_digest[:16]}" if config_digest else None


def head_fields(kind: str, head: AnswerHead) -> dict[str, Any]:
    """The first fields of an answer or a chunk, whose `object` is `kind`."""
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": _fingerprint(head.config_digest),
    }


def usage(counts: TokenCounts) -> dict[str, Any]:
    """The `usage` object; with the tokens of the reasoning, and those of a prompt of which others were left out, if
    there are any."""
    reasoning = min(counts.reasoning, counts.completion)
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {}
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached} | counts.sparse_details,
        **details,
    }


def extension(continued: bool) -> dict[str, dict[str, bool]]:
    """Baton's own field of an answer that a worker of another kind continued: its tokens may differ from those of an
    undisturbed run."""
    return {"baton": {"continued": True}} if continued else {}


def stop_reason(delta: OutputDelta) -> bytes:
    """vLLM's `stop_reason`, after a `finish_reason`: the stop string, or the stop token, that ended the choice. Nothing
    for another end."""
    return b"" if delta.stopped_by is None else b',"stop_reason":' + _encode(delta.stopped_by)


def completion_text(delta: OutputDelta) -> str:
    """The text of a completion. Raises `TypeError` for output that has no place in one."""
    if not isinstance(delta, TextDelta | PromptDelta):
        raise TypeError(f"a completion has no place for a {type(delta).__name__}")
    return delta.text
