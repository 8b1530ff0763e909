"""Outputs of models, and what the renderers make of them."""

from collections.abc import Iterable, Sequence

from gateway.anthropic.answer import MessageAnswer
from gateway.errors import RequestError
from gateway.generation.delta import OutputDelta, ReasoningDelta, StopReason, TextDelta, TokenCounts, ToolCallDelta
from gateway.streaming.dialect import AnswerHead
from protocol.errors import ErrorCode

HEAD = AnswerHead("msg_ID", 0, "tiny", "")
COUNTS = TokenCounts(prompt=10, completion=8, cached=4)
MAX_TOKENS = 64

OUTPUTS: dict[str, tuple[OutputDelta, ...]] = {
    "text": (TextDelta(0, "Hel"), TextDelta(0, 'lo "\u2028\U0001f600'), TextDelta(0, "", stop=StopReason.END)),
    "nothing": (TextDelta(0, "", stop=StopReason.END),),
    "thinking": (
        ReasoningDelta(0, "Let "),
        ReasoningDelta(0, "me see."),
        TextDelta(0, "Yes"),
        TextDelta(0, "", stop=StopReason.END),
    ),
    "thinking_only": (ReasoningDelta(0, "Let", stop=StopReason.LENGTH),),
    "tool_use": (
        TextDelta(0, "I look."),
        ToolCallDelta(0, 0, "call_1", "weather"),
        ToolCallDelta(0, 0, arguments='{"city":'),
        ToolCallDelta(0, 0, arguments='"Oslo"}'),
        TextDelta(0, "", stop=StopReason.TOOL_CALLS),
    ),
    "tools_in_parallel": (
        ReasoningDelta(0, "Two."),
        ToolCallDelta(0, 0, "call_1", "weather", '{"city":"Oslo"}'),
        ToolCallDelta(0, 1, "call_2", "clock", "{}", stop=StopReason.TOOL_CALLS),
    ),
    "tool_use_cut": (
        ToolCallDelta(0, 0, "call_1", "weather", '{"city":"Os'),
        TextDelta(0, "", stop=StopReason.LENGTH),
    ),
}


def whole(deltas: Sequence[OutputDelta], counts: TokenCounts = COUNTS, *, omit: bool = False) -> bytes:
    """The whole answer."""
    answer = MessageAnswer(max_tokens=MAX_TOKENS, omit_thinking=omit)
    return b"".join(answer.whole(HEAD, deltas, counts, continued=False))


def streamed(rounds: Iterable[Sequence[OutputDelta]], counts: TokenCounts = COUNTS, *, omit: bool = False) -> bytes:
    """The events of an answer that was taken in these rounds."""
    events = MessageAnswer(max_tokens=MAX_TOKENS, omit_thinking=omit).events(HEAD)
    begun = [event for deltas in rounds for event in events.deltas(deltas)]
    return b"".join([*begun, *events.end(counts, continued=False)])


def failed(deltas: Sequence[OutputDelta]) -> bytes:
    """The events of an answer that fails after these deltas."""
    events = MessageAnswer(max_tokens=MAX_TOKENS).events(HEAD)
    error = RequestError(ErrorCode.LOST, "the worker died")
    error.request_id = "golden"
    return b"".join([*events.deltas(deltas), *events.error(error)])
