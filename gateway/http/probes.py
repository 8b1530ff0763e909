"""Connections beyond `max_connections`: health probes are answered, everything else is refused.

If probes were refused too, an orchestrator that restarts servers on failed probes would end every stream of one that is
merely busy.
"""

from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from gateway.errors import RequestError
from gateway.http.access.auth import OPEN_PATHS, name_request
from gateway.http.conventions import Application
from gateway.http.exchange import HttpExchange
from gateway.http.listener import NO_ROOM
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode

PROBES = OPEN_PATHS | {"/metrics"}


class ProbesOnly:
    """Passes requests for `PROBES` to `app`, and answers all others with 503."""

    def __init__(self, app: Application, note_refused: Callable[[str], None], settings: GatewaySettings) -> None:
        """`note_refused` counts a refused connection, by the reason."""
        self._app = app
        self._note_refused = note_refused
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        self._note_refused("too many")
        name_request(scope)
        self._app.records.begin(scope)
        full = RequestError(ErrorCode.UNAVAILABLE, NO_ROOM, retry_after_s=self._settings.retry_after_s)
        conventions = self._app.conventions.of(scope["path"])
        await HttpExchange(scope, receive, send, self._settings, conventions).refuse(full)
