"""Answers of the Responses API, whole or as events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.responses.answer.events import ResponseEvents
from gateway.responses.answer.output import Output
from gateway.responses.answer.response_object import Finish, ResponseObject, well_ended
from gateway.responses.ids import response_id
from gateway.streaming import sse
from gateway.streaming.dialect import AnswerHead


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseAnswer:
    """Implements `gateway.streaming.dialect.AnswerRenderer` for the options of one request."""

    echo: bytes
    """The fields that repeat the request, as a JSON object."""
    encrypted: bool = False
    """Reasoning has its `encrypted_content`."""
    background: bool = False
    on_end: Finish | None = None
    """For a response that is kept."""
    content_type = sse.CONTENT_TYPE
    keep_alive = sse.WAITING

    def answer_id(self, token: str) -> str:
        return response_id(token)

    def events(self, head: AnswerHead) -> ResponseEvents:
        output = Output(head.id, encrypted=self.encrypted)
        return ResponseEvents(self._object(head), output, self.on_end, queued=self.background)

    def whole(
        self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool
    ) -> Iterator[bytes]:
        output = Output(head.id, encrypted=self.encrypted)
        output.collect(deltas)
        end = well_ended(output, counts, continued=continued)
        parts = self._object(head).parts(end, output.written())
        if self.on_end is None:
            yield from parts
            return
        kept = []
        for part in parts:
            kept.append(part)
            yield part
        self.on_end(head.id, end.status, b"".join(kept))

    def _object(self, head: AnswerHead) -> ResponseObject:
        return ResponseObject(head.id, head.created, head.model, self.echo)
