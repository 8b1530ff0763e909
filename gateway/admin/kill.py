"""`POST /admin/workers/{name}/kill`: a test of failover by hand."""

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.endpoints import Nothing
from gateway.errors import RefusalCode, RequestError
from gateway.http.small_body import small_body
from gateway.keys.api_keys import ApiKeys
from gateway.routing.router import Router
from gateway.settings import GatewaySettings

_log = structlog.get_logger("gateway.admin.kill")


class WorkerKill:
    """Kills the process of a worker with SIGKILL, as the kernel or another program would. The gateway is not prepared
    for it: its streams continue by replay, and the worker is started again.

    Only on a server with an admin key, and with that key: `gateway.http.access.auth` asks for it where there is one.
    """

    def __init__(self, router: Router, keys: ApiKeys, settings: GatewaySettings) -> None:
        self._router = router
        self._keys = keys
        self._body_s = settings.body_timeout_s

    def routes(self) -> list[Route]:
        """The route under `/admin`."""
        return [Route("/admin/workers/{name}/kill", self.kill, methods=["POST"])]

    async def kill(self, request: Request) -> Response:
        """The process that was killed. 409 if the worker has none on this machine."""
        await small_body(request, Nothing, self._body_s)
        if not self._keys.administers:
            text = "to kill a worker, start the server with an admin key (`admin_key`)"
            raise RequestError(RefusalCode.ADMIN_KEY_NEEDED, text)
        name = request.path_params["name"]
        handle = self._router.pool.find(name)
        if handle is None:
            text = f"there is no worker {name[:128]!r}"
            raise RequestError(RefusalCode.WORKER_NOT_FOUND, text, field="worker")
        status = handle.status
        if not handle.worker.kill_nowait():
            text = f"worker {name!r} has no process here: it is {status.state.value.replace('_', ' ')}"
            raise RequestError(RefusalCode.NO_PROCESS, text, field="worker")
        _log.warning(
            "worker_killed",
            worker=name,
            incarnation=status.incarnation,
            pid=status.pid,
            streams=len(handle.live),
            key=request.scope["baton.key_name"],
        )
        value = {"worker": name, "incarnation": status.incarnation, "pid": status.pid}
        return Response(msgspec.json.encode(value), 202, media_type="application/json")
