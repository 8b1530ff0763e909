"""Replaces the certificate of a running server."""

import anyio
import anyio.to_thread
import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.endpoints import Nothing
from gateway.errors import RefusalCode, RequestError
from gateway.http.small_body import small_body
from gateway.http.tls import Tls, TlsInvalid
from gateway.settings import GatewaySettings

_log = structlog.get_logger("gateway.admin.tls_reload")


class TlsReload:
    """Reads the files of the certificate and its key again. Connections under way go on."""

    def __init__(self, tls: Tls | None, settings: GatewaySettings) -> None:
        self._tls = tls
        self._body_s = settings.body_timeout_s
        self._reading = anyio.Lock()

    def routes(self) -> list[Route]:
        """The route under `/admin`."""
        return [Route("/admin/tls/reload", self.reload, methods=["POST"])]

    async def reload(self, request: Request) -> Response:
        """`POST /admin/tls/reload`: a warning about the certificate, or an empty one. If the files are invalid, the
        certificate stays."""
        await small_body(request, Nothing, self._body_s)
        if self._tls is None:
            text = "there is no certificate: start the server with `tls_cert` and `tls_key`"
            raise RequestError(RefusalCode.TLS_NOT_RELOADED, text)
        try:
            async with self._reading:
                self._tls.adopt(await anyio.to_thread.run_sync(self._tls.read))  # they may be on a network
                await self._tls.spread()
        except TlsInvalid as error:
            _log.error("tls_not_reloaded", problem=str(error))
            raise RequestError(RefusalCode.TLS_NOT_RELOADED, str(error)) from error
        warning = self._tls.warning
        _log.info("tls_reloaded", warning=warning)
        return Response(msgspec.json.encode({"warning": warning}), media_type="application/json")
