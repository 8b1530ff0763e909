"""Answers in Ollama's formats, whole or as lines of JSON."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.errors import RequestError
from gateway.generation.broken_calls import as_text
from gateway.generation.delta import OutputDelta, ReasoningDelta, StopReason, TextDelta, TokenCounts, ToolCallDelta
from gateway.ollama.errors import ERRORS
from gateway.streaming.dialect import AnswerHead, EventRenderer

NDJSON = b"application/x-ndjson"
NS_PER_MS = 1_000_000
_encode = msgspec.json.Encoder().encode


def timestamp(seconds: int) -> str:
    """A time as Ollama writes it, of seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True, kw_only=True)
class OllamaAnswer:
    """Implements `gateway.streaming.dialect.AnswerRenderer` for one request."""

    model: str
    """The name that the client gave the model."""
    chat: bool
    clock: Callable[[], int] = time.monotonic_ns
    began: int = field(default_factory=time.monotonic_ns)
    """The time of the request, by the clock."""
    content_type: bytes = NDJSON
    keep_alive: bytes = b""

    def __post_init__(self) -> None:
        # A line without output: clients decode each line.
        self.keep_alive = self.line(int(time.time()), [], {"done": False})

    def answer_id(self, token: str) -> str:
        return f"ollama-{token}"

    def events(self, head: AnswerHead) -> EventRenderer:
        return OllamaLines(self, head.created)

    def whole(
        self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool
    ) -> Iterator[bytes]:
        stop = deltas[-1].stop if deltas else None
        yield self.line(head.created, deltas, self.end(stop, counts, continued=continued))

    def line(self, created: int, deltas: Sequence[OutputDelta], rest: dict[str, Any]) -> bytes:
        """One object: the output of these deltas, with whole calls of tools, and the rest of its fields."""
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        thinking = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
        thought = {"thinking": thinking} if thinking else {}
        fields: dict[str, Any] = {"model": self.model, "created_at": timestamp(created)}
        if self.chat:
            calls = _tool_calls(deltas)
            fields["message"] = (
                {"role": "assistant", "content": text} | thought | ({"tool_calls": calls} if calls else {})
            )
        else:
            fields |= {"response": text} | thought
        return _encode(fields | rest) + b"\n"

    def end(self, stop: StopReason | None, counts: TokenCounts, *, continued: bool) -> dict[str, Any]:
        """The fields of the last object. Durations are in nanoseconds: the total as the gateway has measured it, and
        the others as the worker has."""
        fields = {
            "done": True,
            "done_reason": "length" if stop is StopReason.LENGTH else "stop",
            "total_duration": self.clock() - self.began,
            "load_duration": 0,
            "prompt_eval_count": counts.prompt,
            "prompt_eval_duration": counts.prefill_ms * NS_PER_MS,
            "eval_count": counts.completion,
            "eval_duration": counts.decode_ms * NS_PER_MS,
            **counts.sparse_details,
        }
        return fields | ({"baton": {"continued": True}} if continued else {})


class OllamaLines:
    """Implements `gateway.streaming.dialect.EventRenderer`: a line for each kind of output, and one for each call of a
    tool, when it is whole. A call that broke off is text, and one that the end of the answer truncated is left out."""

    def __init__(self, answer: OllamaAnswer, created: int) -> None:
        self._answer = answer
        self._created = created
        self._call: list[ToolCallDelta] = []
        """The parts of the call that is not whole yet."""
        self._stop: StopReason | None = None

    def deltas(self, deltas: Sequence[OutputDelta]) -> list[bytes]:
        lines: list[bytes] = []
        for delta in deltas:
            self._stop = delta.stop or self._stop
            if isinstance(delta, ToolCallDelta):
                if self._call and self._call[-1].call != delta.call:
                    lines += self._closed()
                self._call.append(delta)
            elif delta.text:
                lines += [*self._closed(), self._line([delta])]
        return lines

    def end(self, counts: TokenCounts, *, continued: bool) -> list[bytes]:
        last = self._answer.line(self._created, [], self._answer.end(self._stop, counts, continued=continued))
        return [*self._closed(truncated=self._stop is not StopReason.END), last]

    def error(self, error: RequestError) -> list[bytes]:
        return [ERRORS.last_events(error)]

    def _closed(self, *, truncated: bool = False) -> list[bytes]:
        parts, self._call = self._call, []
        if _tool_calls(parts):
            return [self._line(parts)]
        return [] if truncated or not parts else [self._line(list(map(as_text, parts)))]

    def _line(self, deltas: Sequence[OutputDelta]) -> bytes:
        return self._answer.line(self._created, deltas, {"done": False})


def _tool_calls(deltas: Sequence[OutputDelta]) -> list[dict[str, Any]]:
    by_call: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            by_call.setdefault(delta.call, []).append(delta)
    calls = []
    for call, parts in sorted(by_call.items()):
        arguments = _arguments("".join(part.arguments for part in parts))
        if arguments is not None:
            name = "".join(part.name for part in parts)
            function = {"index": call, "name": name, "arguments": arguments}
            calls.append({"id": "".join(part.id for part in parts), "function": function})
    return calls


def _arguments(text: str) -> Any:
    """The object of arguments; None if they are incomplete, as clients run a call as soon as they have it."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
