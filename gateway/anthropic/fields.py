"""Fields that whole messages and events have in common."""

from typing import Any

from gateway.generation.delta import StopReason, TokenCounts

SIGNATURE = "baton"
"""The `signature` of every thinking block. Nothing is signed here, and any signature is accepted; clients send a block
back only if it has one."""


def stop_reason(stop: StopReason | None, counts: TokenCounts, max_tokens: int) -> str | None:
    """Anthropic's `stop_reason`. An answer shorter than its limit was ended by the context."""
    match stop:
        case StopReason.END:
            return "end_turn"
        case StopReason.TOOL_CALLS:
            return "tool_use"
        case StopReason.LENGTH:
            return "max_tokens" if counts.completion >= max_tokens else "model_context_window_exceeded"
        case None:
            return None


def usage(counts: TokenCounts) -> dict[str, Any]:
    """The `usage` object. `input_tokens` are those that were not read from the cache."""
    return {
        "input_tokens": counts.prompt - counts.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.completion,
    }


def extension(continued: bool) -> dict[str, dict[str, bool]]:
    """Baton's own field of an answer that a worker of another kind continued: its tokens may differ from those of an
    undisturbed run."""
    return {"baton": {"continued": True}} if continued else {}
