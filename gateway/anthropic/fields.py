"""Fields that whole messages and events have in common."""

from typing import Any, NamedTuple

from gateway.generation.delta import Stopper, StopReason, TokenCounts

SIGNATURE = "baton"
"""The `signature` of every thinking block. Nothing is signed here, and any signature is accepted; clients send a block
back only if it has one."""


class AnswerStop(NamedTuple):
    """Why an answer stopped; without a reason before its end."""

    reason: StopReason | None = None
    by: Stopper | None = None

    def fields(self, counts: TokenCounts, max_tokens: int) -> dict[str, Any]:
        """The fields of a message. Calls of tools come first: the client answers them, whatever was generated after."""
        reason = self._name(counts, max_tokens)
        sequence = self.by if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}

    def _name(self, counts: TokenCounts, max_tokens: int) -> str | None:
        """Anthropic's name. An answer shorter than its limit was ended by the context."""
        match self.reason:
            case StopReason.END:
                return "end_turn" if self.by is None else "stop_sequence"
            case StopReason.TOOL_CALLS:
                return "tool_use"
            case StopReason.LENGTH:
                return "max_tokens" if counts.completion >= max_tokens else "model_context_window_exceeded"
            case None:
                return None


def usage(counts: TokenCounts) -> dict[str, Any]:
    """The `usage` object. `input_tokens` are those that were neither read from the cache nor kept there by a mark."""
    return {
        "input_tokens": counts.prompt - counts.cached - counts.created,
        "cache_creation_input_tokens": counts.created,
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.completion,
        **counts.sparse_details,
    }


def extension(continued: bool) -> dict[str, dict[str, bool]]:
    """Baton's own field of an answer that a worker of another kind continued: its tokens may differ from those of an
    undisturbed run."""
    return {"baton": {"continued": True}} if continued else {}
