"""A second dialect, as small as possible but different from OpenAI's: named events, content blocks, another error
object.

It shares nothing with `gateway.openai`, and exists to show that a dialect is a folder and nothing else.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gateway.errors import RequestError
from gateway.generation.delta import (
    OutputDelta,
    PromptDelta,
    ReasoningDelta,
    StopReason,
    TextDelta,
    TokenCounts,
    ToolCallDelta,
    VectorDelta,
)
from gateway.generation.request import GenerationRequest, OutputOptions, SequenceRequest
from gateway.http.conventions import HttpConventions
from gateway.http.json_body import Hints, decode_body
from gateway.streaming import sse
from gateway.streaming.dialect import AnswerHead, Decoded, Dialect, EventRenderer
from protocol.errors import ErrorCode
from protocol.request import ChatInput, Limits, Message, Sampling

PATH = "/v1/messages"
STOP_REASONS = {StopReason.END: "end_turn", StopReason.LENGTH: "max_tokens", StopReason.TOOL_CALLS: "tool_use"}
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    529: "overloaded_error",
}
HINTS = Hints(takes={"role": "user or assistant"})


class Turn(Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str


class Body(Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    messages: Annotated[tuple[Turn, ...], Meta(min_length=1)]
    max_tokens: int
    system: str = ""
    stream: bool = False
    resume_s: float = 0.0


DECODER = msgspec.json.Decoder(Body)


def decode(raw: bytes) -> Decoded:
    body = decode_body(DECODER, raw, HINTS)
    system = (Message("system", body.system),) if body.system else ()
    messages = (*system, *(Message(turn.role, turn.content) for turn in body.messages))
    sequence = SequenceRequest(ChatInput(messages), Sampling(), Limits(max_tokens=body.max_tokens))
    output = OutputOptions(stream=body.stream, resume_s=body.resume_s)
    return Decoded(GenerationRequest(body.model, (sequence,), output), MessageRenderer())


class MessageErrors:
    """Implements `gateway.http.conventions.ErrorRenderer`."""

    def status(self, error: RequestError) -> int:
        return 529 if error.code is ErrorCode.OVERLOADED else error.status

    def body(self, error: RequestError) -> bytes:
        kind = ERROR_TYPES.get(self.status(error), "api_error")
        return json.dumps({"type": "error", "error": {"type": kind, "message": error.text}}).encode()

    def last_events(self, error: RequestError) -> bytes:
        return b"event: error\ndata: " + self.body(error) + sse.END


ERRORS = MessageErrors()


class MessageRenderer:
    """Implements `gateway.streaming.dialect.AnswerRenderer`."""

    content_type = b"text/event-stream"
    keep_alive = b'event: ping\ndata: {"type": "ping"}\n\n'

    def answer_id(self, token: str) -> str:
        return f"msg_{token}"

    def whole(
        self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool
    ) -> Iterator[bytes]:
        blocks: list[dict[str, Any]] = []
        for delta in deltas:
            begun = block(delta)
            if not blocks or not same_block(blocks[-1], begun):
                blocks.append(begun)
            for field, value in added(delta).items():
                blocks[-1][field] = blocks[-1].get(field, "") + value
        stop = deltas[-1].stop
        yield json.dumps(
            {
                "id": head.id,
                "type": "message",
                "role": "assistant",
                "model": head.model,
                "content": blocks,
                "stop_reason": None if stop is None else STOP_REASONS[stop],
                "usage": {"input_tokens": counts.prompt, "output_tokens": counts.completion},
            }
        ).encode()

    def events(self, head: AnswerHead) -> EventRenderer:
        return MessageEvents(head)


class MessageEvents:
    """Implements `gateway.streaming.dialect.EventRenderer`."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._block: dict[str, Any] | None = None
        self._index = -1
        self._begun = False
        self._stop: StopReason | None = None

    def deltas(self, deltas: Sequence[OutputDelta]) -> list[bytes]:
        events = [] if self._begun else [self._event("message_start", message={"id": self._head.id})]
        self._begun = True
        for delta in deltas:
            begun = block(delta)
            if self._block is None or not same_block(self._block, begun):
                events += self._stop_block()
                self._block = begun
                self._index += 1
                events.append(self._event("content_block_start", index=self._index, content_block=begun))
            if any((new := added(delta)).values()):
                events.append(self._event("content_block_delta", index=self._index, delta=new))
            self._stop = delta.stop or self._stop
        return events

    def end(self, counts: TokenCounts, *, continued: bool) -> list[bytes]:
        assert self._stop is not None
        reason, usage = STOP_REASONS[self._stop], {"input_tokens": counts.prompt, "output_tokens": counts.completion}
        last = self._event("message_delta", delta={"stop_reason": reason}, usage=usage)
        return [*self._stop_block(), last, self._event("message_stop")]

    def error(self, error: RequestError) -> list[bytes]:
        return [ERRORS.last_events(error)]

    def _stop_block(self) -> list[bytes]:
        return [] if self._block is None else [self._event("content_block_stop", index=self._index)]

    def _event(self, name: str, **fields: Any) -> bytes:
        data = json.dumps({"type": name} | fields)
        return f"event: {name}\ndata: {data}".encode() + sse.END


def block(delta: OutputDelta) -> dict[str, Any]:
    """The content block that a delta begins, unless it continues the one before."""
    match delta:
        case TextDelta():
            return {"type": "text"}
        case ReasoningDelta():
            return {"type": "thinking"}
        case ToolCallDelta():
            return {"type": "tool_use", "id": delta.id, "name": delta.name}
        case PromptDelta() | VectorDelta():
            raise TypeError("a message has no place for a prompt or a vector")


def same_block(last: dict[str, Any], begun: dict[str, Any]) -> bool:
    """Parts of a tool call after its first one have no id."""
    return bool(last["type"] == begun["type"] and not begun.get("id"))


def added(delta: OutputDelta) -> dict[str, str]:
    """The part that a delta adds to its block."""
    match delta:
        case TextDelta():
            return {"text": delta.text}
        case ReasoningDelta():
            return {"thinking": delta.text}
        case ToolCallDelta():
            return {"input_json": delta.arguments}
        case PromptDelta() | VectorDelta():
            raise TypeError("a message has no place for a prompt or a vector")


DIALECT = Dialect(HttpConventions(ERRORS, key_headers=(b"x-api-key",)), {PATH: decode}, prefixes=(PATH,))
