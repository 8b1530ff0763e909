"""What a connection beyond `max_connections` is for: an overloaded server still says how it is, and refuses the rest.

Were probes refused as well, whoever restarts a server that does not answer them would cut every stream of one that is
merely busy.
"""

from starlette.types import Receive, Scope, Send

from gateway.errors import RequestError
from gateway.http.auth import OPEN_PATHS, name_request
from gateway.http.conventions import Application
from gateway.http.exchange import Exchange
from gateway.http.listener import NO_ROOM, Listener
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode

PROBES = OPEN_PATHS | {"/metrics"}


class ProbesOnly:
    """Lets what asks for one of `PROBES` through to `app`, and answers everything else 503."""

    def __init__(self, app: Application, listener: Listener, settings: GatewaySettings) -> None:
        self._app = app
        self._listener = listener
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        self._listener.note_refused("too many")
        name_request(scope)
        full = RequestError(ErrorCode.UNAVAILABLE, NO_ROOM, retry_after_s=self._settings.retry_after_s)
        conventions = self._app.conventions.of(scope["path"])
        await Exchange(scope, receive, send, self._settings, conventions).refuse(full)
