"""The events of a response in the background, for any number of readers."""

import anyio

from gateway.errors import RefusalCode, RequestError, invalid
from gateway.http.exchange import HttpExchange
from gateway.settings import GatewaySettings
from gateway.streaming import sse
from gateway.streaming.replay_buffer import EventLog, EventsGone, EventsUnknown


class EventFeed:
    """Keeps the newest `resume_buffer_bytes` of events. Positions are numbers of events, from 1; a `sequence_number`
    counts from 0."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._comment_s = settings.waiting_comment_s
        self._log = EventLog(settings.resume_buffer_bytes)
        self._changed = anyio.Event()
        self._over = False

    def append(self, events: list[bytes], *, over: bool) -> None:
        """Add events; the last ones with `over`. They are kept, whatever their size, until the next ones come, so that
        a reader that waits gets them."""
        self._log.append(events, at_least=sum(map(len, events)))
        self._over = over
        self._changed.set()
        self._changed = anyio.Event()

    def trim(self) -> None:
        """Keep no more than the bound."""
        self._log.append([])

    def check_position(self, number: int, field: str) -> None:
        """Raise `RequestError` if the events after this one cannot be read."""
        try:
            self._log.after(number)
        except EventsUnknown:
            text = f"`{field}`: the last event of this response so far has the sequence_number {self._log.last - 1}"
            raise invalid(field, text) from None
        except EventsGone:
            text = f"`{field}`: these events are not kept any more; retrieve the response without `stream`"
            raise RequestError(RefusalCode.EVENTS_GONE, text, field=field) from None

    async def send(self, exchange: HttpExchange, scope: anyio.CancelScope, number: int) -> None:
        """Send the events after this one, to the end. A reader that is too slow gets an error."""
        await exchange.start_events(scope, sse.CONTENT_TYPE)
        while True:
            try:
                chunk = self._log.after(number)
            except EventsGone:
                text = "the events were not read in time and are not kept any more"
                await exchange.end(RequestError(RefusalCode.EVENTS_GONE, text))
                return
            number, over = self._log.last, self._over
            if chunk or over:
                await exchange.events(chunk, more=not over)
            if over:
                return
            if number == self._log.last and not self._over:
                await self._wait(exchange)

    async def _wait(self, exchange: HttpExchange) -> None:
        """Wait for further events. A comment tells the client that there are none yet."""
        with anyio.move_on_after(self._comment_s) as interval:
            await self._changed.wait()
        if interval.cancelled_caught:
            await exchange.events(sse.WAITING)
