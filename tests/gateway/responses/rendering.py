"""Answers that the tests render, as the deltas of workers make them."""

from collections.abc import Sequence

from gateway.errors import RequestError
from gateway.generation.delta import OutputDelta, ReasoningDelta, StopReason, TextDelta, TokenCounts, ToolCallDelta
from gateway.responses.answer.renderer import ResponseAnswer
from gateway.responses.request.decoding import ResponsesDecoder, echo
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnswerHead
from protocol.errors import ErrorCode
from protocol.events import Logprobs, TokenLogprob

HEAD = AnswerHead("resp_" + "0" * 24, 1, "tiny", "0123456789abcdef0123")
COUNTS = TokenCounts(9, 8, 2)
BODY = ResponsesDecoder(GatewaySettings()).body(b'{"model": "tiny", "input": "hi"}')
FAILURE = RequestError(ErrorCode.DEADLINE, "not finished within 1 s")

CALLS: list[OutputDelta] = [
    ReasoningDelta(0, "Let me "),
    ReasoningDelta(0, "look."),
    TextDelta(0, "I look "),
    TextDelta(0, "it up."),
    ToolCallDelta(0, 0, "call_1", "weather"),
    ToolCallDelta(0, 0, arguments='{"city": "Pa'),
    ToolCallDelta(0, 0, arguments='ris"}'),
    ToolCallDelta(0, 1, "call_2", "time", "{}", stop=StopReason.TOOL_CALLS),
]
TEXT: list[OutputDelta] = [TextDelta(0, "Hel"), TextDelta(0, "lo"), TextDelta(0, "", stop=StopReason.END)]
REPORT = Logprobs(TokenLogprob(1, -0.5, b"Hi"), (TokenLogprob(1, -0.5, b"Hi"), TokenLogprob(2, -1.0, b"\xc3")))
ANSWERS: dict[str, list[OutputDelta]] = {
    "text": TEXT,
    "calls": CALLS,
    "end_after_a_call": [CALLS[4], ToolCallDelta(0, 0, arguments="{}"), TextDelta(0, "", (1,), (), StopReason.END)],
    "reasoning_then_text": [ReasoningDelta(0, "Hm"), TextDelta(0, "", (1,)), TextDelta(0, "x", stop=StopReason.END)],
    "empty": [TextDelta(0, "", stop=StopReason.END)],
    "incomplete": [TextDelta(0, "Hel", stop=StopReason.LENGTH)],
    "incomplete_call": [ToolCallDelta(0, 0, "call_1", "time", '{"a"', stop=StopReason.LENGTH)],
    "incomplete_reasoning": [ReasoningDelta(0, "Hm", (1, 2), stop=StopReason.LENGTH)],
    "logprobs": [TextDelta(0, "Hi", (1,), (REPORT,)), TextDelta(0, "", (2,), (REPORT,), StopReason.END)],
}


def answer(*, encrypted: bool = False) -> ResponseAnswer:
    return ResponseAnswer(echo=echo(BODY, stored=True), encrypted=encrypted)


def rendered(made: ResponseAnswer, deltas: Sequence[OutputDelta], error: RequestError | None = None) -> list[bytes]:
    """The events of an answer whose deltas come one by one."""
    events = made.events(HEAD)
    raw = events.deltas([])
    for delta in deltas:
        raw += events.deltas([delta])
    return raw + (events.end(COUNTS, continued=False) if error is None else events.error(error))


def whole(made: ResponseAnswer, deltas: Sequence[OutputDelta]) -> bytes:
    return b"".join(made.whole(HEAD, deltas, COUNTS, continued=False))
