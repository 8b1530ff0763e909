"""Answers as typed events, in the order and with the numbers that OpenAI's API has."""

from collections.abc import Iterable, Sequence

from gateway.errors import RequestError
from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.responses.answer.output import Output
from gateway.responses.answer.output_items import Named
from gateway.responses.answer.response_object import Finish, ResponseEnd, ResponseObject, failed_end, well_ended


class ResponseEvents:
    """Implements `gateway.streaming.dialect.EventRenderer`."""

    def __init__(
        self, response: ResponseObject, output: Output, on_end: Finish | None = None, *, queued: bool = False
    ) -> None:
        """`queued`: the response is in progress from its first output on, and queued before."""
        self._response = response
        self._output = output
        self._on_end = on_end
        self._number = 0
        """The number of the next event."""
        self.status = "queued" if queued else "in_progress"
        """The status of the response."""

    def deltas(self, deltas: Sequence[OutputDelta]) -> list[bytes]:
        events: list[Named] = []
        if not self._number:
            events.append(self._state("created"))
            events.append(self._state(self.status))
        if deltas:
            events += self._begin()
        return self._write(events + self._output.add(deltas))

    def end(self, counts: TokenCounts, *, continued: bool) -> list[bytes]:
        events = self._write(self._begin() + self._output.end())
        return events + self._last(well_ended(self._output, counts, continued=continued))

    def error(self, error: RequestError) -> list[bytes]:
        return self._fail(failed_end(error))

    def cancel(self) -> list[bytes]:
        """Render the last events of a response that was cancelled."""
        return self._fail(ResponseEnd("cancelled"))

    def continue_after(self, number: int) -> None:
        """See `gateway.streaming.dialect.NumberedEvents`."""
        self._number = number

    def under_way(self) -> bytes:
        """The response as JSON, before its end."""
        return self._response.under_way(self.status)

    def _begin(self) -> list[Named]:
        """The event of a queued response that is now in progress."""
        if self.status != "queued":
            return []
        self.status = "in_progress"
        return [self._state(self.status)]

    def _state(self, event: str) -> Named:
        return f"response.{event}", (b'"response":', self.under_way())

    def _fail(self, end: ResponseEnd) -> list[bytes]:
        return self._last(end, failed=True)

    def _last(self, end: ResponseEnd, *, failed: bool = False) -> list[bytes]:
        self.status = end.status
        response = b"".join(self._response.parts(end, self._output.written(failed=failed)))
        if self._on_end is not None:
            self._on_end(self._response.id, end.status, response)
        # There is no event for a cancellation in OpenAI's API.
        name = "failed" if end.status == "cancelled" else end.status
        return self._write([(f"response.{name}", (b'"response":', response))])

    def _write(self, events: Iterable[Named]) -> list[bytes]:
        return [self._event(name.encode(), fields) for name, fields in events]

    def _event(self, name: bytes, fields: Sequence[bytes]) -> bytes:
        number, self._number = self._number, self._number + 1
        head = b'event: %s\ndata: {"type":"%s","sequence_number":%d,' % (name, name, number)
        return b"".join((head, *fields, b"}\n\n"))
