"""The `response` object, in answers, in events and in the store."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.errors import RequestError
from gateway.generation.delta import StopReason, TokenCounts
from gateway.openai.fields import extension
from gateway.responses.answer.output import Output
from protocol.errors import ErrorCode

Finish = Callable[[str, str, bytes], None]
"""Gets the id, the status and the whole response as JSON, when the response has ended."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """End of a response: its status, with an error, a reason or a usage."""

    status: str
    error: dict[str, Any] | None = None
    incomplete: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    continued: bool = False
    """A worker of another kind continued the answer."""


def well_ended(output: Output, counts: TokenCounts, *, continued: bool) -> ResponseEnd:
    """The end of a response whose answer ended well."""
    truncated = output.stop is StopReason.LENGTH
    return ResponseEnd(
        "incomplete" if truncated else "completed",
        incomplete={"reason": "max_output_tokens"} if truncated else None,
        usage={
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": counts.created}
            | counts.sparse_details,
            "output_tokens": counts.completion,
            "output_tokens_details": {"reasoning_tokens": min(counts.reasoning, counts.completion)},
            "total_tokens": counts.prompt + counts.completion,
        },
        continued=continued,
    )


def failed_end(error: RequestError) -> ResponseEnd:
    """The end of a response that failed."""
    if error.code is ErrorCode.OVERLOADED:
        code = "rate_limit_exceeded"
    else:
        code = "server_error" if error.status >= 500 else "invalid_prompt"
    return ResponseEnd("failed", error={"code": code, "message": error.text})


class ResponseObject:
    """Writes one response in any of its states. What never changes is encoded once."""

    def __init__(self, response: str, created: int, model: str, echo: bytes) -> None:
        """`echo`: the fields that repeat the request, as a JSON object."""
        self.id = response
        self._created = created
        self._model = _encode(model)
        self._echo = echo[1:-1]

    def under_way(self, status: str) -> bytes:
        """The response before its end."""
        return b"".join(self.parts(ResponseEnd(status), ()))

    def parts(self, end: ResponseEnd, items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
        """The response in parts, with these items, which are in parts as well, as its output."""
        completed = int(time.time()) if end.status == "completed" else None
        head = {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": end.status,
            "completed_at": completed,
            "error": end.error,
            "incomplete_details": end.incomplete,
        }
        yield b'%s,"model":%s,"output":[' % (_encode(head)[:-1], self._model)
        for index, item in enumerate(items):
            yield b"," if index else b""
            yield from item
        usage = _encode({"usage": end.usage} | extension(end.continued))[1:-1]
        yield b"],%s,%s}" % (usage, self._echo)
