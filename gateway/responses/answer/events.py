"""Answers as typed events, in the order and with the numbers that OpenAI's API has."""

from collections.abc import Iterable, Sequence

from gateway.errors import RequestError
from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.responses.answer.output import Output
from gateway.responses.answer.output_items import Named
from gateway.responses.answer.response_object import Finish, ResponseEnd, ResponseObject, failed_end, well_ended


class ResponseEvents:
    """Implements `gateway.streaming.dialect.EventRenderer`."""

    def __init__(self, response: ResponseObject, output: Output, on_end: Finish | None = None) -> None:
        self._response = response
        self._output = output
        self._on_end = on_end
        self._number = 0
        """The number of the next event."""

    def deltas(self, deltas: Sequence[OutputDelta]) -> list[bytes]:
        events: list[Named] = []
        if not self._number:
            events.append(("response.created", b'"response":' + self._response.under_way("in_progress")))
            events.append(("response.in_progress", b'"response":' + self._response.under_way("in_progress")))
        return self._write(events + self._output.add(deltas))

    def end(self, counts: TokenCounts, *, continued: bool) -> list[bytes]:
        events = self._write(self._output.end())
        return events + self._last(well_ended(self._output, counts, continued=continued))

    def error(self, error: RequestError) -> list[bytes]:
        self._output.fail()
        return self._last(failed_end(error))

    def _last(self, end: ResponseEnd) -> list[bytes]:
        items = self._output.written()
        response = b"".join(self._response.parts(end, items))
        if self._on_end is not None:
            self._on_end(self._response.id, end.status, response)
        return self._write([(f"response.{end.status}", b'"response":' + response)])

    def _write(self, events: Iterable[Named]) -> list[bytes]:
        return [self._event(name.encode(), fields) for name, fields in events]

    def _event(self, name: bytes, fields: bytes) -> bytes:
        number, self._number = self._number, self._number + 1
        return b'event: %s\ndata: {"type":"%s","sequence_number":%d,%s}\n\n' % (name, name, number, fields)
