"""The requests of one front in the gateway: the app answers each in a task of its own."""

from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from starlette.types import ASGIApp

from gateway.fronts.exchange import RelayedExchange
from gateway.fronts.frames import BodyPart, ClientLeft, ExchangeOpened, ResponseDelivered, ResponseTaken, ToFront
from gateway.fronts.outbox import FrameOutbox

_log = structlog.get_logger("gateway.fronts.relayed")

ExchangeFrame = ExchangeOpened | BodyPart | ClientLeft | ResponseTaken | ResponseDelivered
Answer = Callable[[RelayedExchange, ExchangeOpened], Coroutine[Any, Any, None]]
Start = Callable[[Answer, RelayedExchange, ExchangeOpened], None]
"""Starts a task that calls a function with its arguments."""


class RelayedExchanges:
    """The exchanges of one front by their numbers, from their head until the app has ended."""

    def __init__(
        self,
        app: ASGIApp,
        probes: ASGIApp,
        outbox: FrameOutbox[ToFront],
        start: Start,
    ) -> None:
        """`probes` serves spare connections."""
        self._app = app
        self._probes = probes
        self._outbox = outbox
        self._start = start
        self._exchanges: dict[int, RelayedExchange] = {}

    def take(self, frame: ExchangeFrame) -> None:
        """Handle a frame. One of an exchange whose app has ended has no effect."""
        if isinstance(frame, ExchangeOpened):
            exchange = self._exchanges[frame.exchange] = RelayedExchange(frame, self._outbox)
            self._start(self._answer, exchange, frame)
            return
        found = self._exchanges.get(frame.exchange)
        if found is None:
            return
        match frame:
            case ResponseTaken(_, count):
                found.taken(count)
            case BodyPart():
                found.add(frame)
            case ResponseDelivered():
                found.delivered()
            case ClientLeft():
                found.leave()

    def lose(self) -> None:
        """The front is gone, and with it the connections of all clients."""
        for exchange in self._exchanges.values():
            exchange.leave()

    async def _answer(self, exchange: RelayedExchange, opened: ExchangeOpened) -> None:
        app = self._probes if opened.spare else self._app
        try:
            await app(exchange.scope(), exchange.receive, exchange.send)
        except Exception as error:  # noqa: BLE001  a bug of the app; the client gets an incomplete response, or a 500
            _log.error("request_failed", method=opened.method, exc_info=error)
        finally:
            del self._exchanges[opened.exchange]
            exchange.end()
