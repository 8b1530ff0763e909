"""Admin endpoints that change something: drain, restart and reload of workers, whose end they do not wait for, and the
reload of API keys."""

import functools
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, get_args

import anyio
import anyio.to_thread
import msgspec
import structlog
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actors.actor import Ref, ReplyTo
from gateway.errors import RefusalCode, RequestError
from gateway.fleet.messages import (
    ChangeModel,
    DrainOne,
    FleetMessage,
    LatestOperation,
    ModelChange,
    RemoveRemote,
    ReplaceAll,
    RestartAll,
    RestartOne,
)
from gateway.fleet.operation import Busy, Operation
from gateway.http.access.auth import KEYS_PATH
from gateway.http.small_body import small_body
from gateway.keys.api_keys import ApiKeys
from gateway.keys.key_file import ApiKeysInvalid
from gateway.settings import GatewaySettings
from protocol.bounds import Label

MAX_GRACE_S = 86400.0
ANSWER_S = 10.0
"""Deadline of the fleet's reply, which it sends at once."""

_log = structlog.get_logger("gateway.admin.endpoints")


class Leave(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request to drain or restart one worker, or to load, unload or reload a model."""

    grace_s: Annotated[float, Meta(ge=0.0, le=MAX_GRACE_S)] | None = None
    """Time for its sequences to finish, before they continue on other workers, or before a model that was to be
    unloaded stays; None is `shutdown_grace_s`."""


class LeaveAll(Leave, frozen=True, forbid_unknown_fields=True):
    """The body of a request to restart workers."""

    model: Label = ""
    """Only the workers of this model; empty: all."""


class Reload(LeaveAll, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of a request to restart workers with another checkpoint."""

    checkpoint: Annotated[str, Meta(min_length=1, max_length=4096)]
    """A directory on the gateway's machine."""


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that has no parameters."""


class Admin:
    """Operations on workers. Each method answers one route; an accepted request gets 202 with the operation."""

    def __init__(
        self, fleet: Ref[FleetMessage], settings: GatewaySettings, canonical: Callable[[str], str] = str
    ) -> None:
        """`canonical` returns the own name of the model with a name or alias."""
        self._fleet = fleet
        self._canonical = canonical
        self._settings = settings

    def routes(self) -> list[Route]:
        """The routes under `/admin`, besides the list of workers."""
        return [
            Route("/admin/operation", self.operation),
            Route("/admin/workers/{name}/drain", self.drain, methods=["POST"]),
            Route("/admin/workers/{name}/remove", self.remove, methods=["POST"]),
            Route("/admin/workers/{name}/restart", self.restart, methods=["POST"]),
            Route("/admin/restart", self.restart_all, methods=["POST"]),
            Route("/admin/reload", self.reload, methods=["POST"]),
            *(
                Route(f"/admin/models/{{name:path}}/{change}", self._model(change), methods=["POST"])
                for change in get_args(ModelChange)
            ),
        ]

    async def operation(self, _: Request) -> Response:
        """`GET /admin/operation`: the latest operation, running or ended."""
        return _answer(await self._fleet.ask(LatestOperation, timeout=ANSWER_S), 200)

    async def drain(self, request: Request) -> Response:
        """`POST /admin/workers/{name}/drain`."""
        leave = await small_body(request, Leave, self._settings.body_timeout_s)
        name = request.path_params["name"]
        return await self._begin(functools.partial(DrainOne, name, self._grace(leave)), "worker", name)

    async def remove(self, request: Request) -> Response:
        """`POST /admin/workers/{name}/remove`: of a worker of another machine."""
        leave = await small_body(request, Leave, self._settings.body_timeout_s)
        name = request.path_params["name"]
        return await self._begin(functools.partial(RemoveRemote, name, self._grace(leave)), "worker", name)

    async def restart(self, request: Request) -> Response:
        """`POST /admin/workers/{name}/restart`."""
        leave = await small_body(request, Leave, self._settings.body_timeout_s)
        name = request.path_params["name"]
        return await self._begin(functools.partial(RestartOne, name, self._grace(leave)), "worker", name)

    async def restart_all(self, request: Request) -> Response:
        """`POST /admin/restart`, with `?rolling` so that another worker is ready before one leaves."""
        leave = await small_body(request, LeaveAll, self._settings.body_timeout_s)
        model, grace_s = self._canonical(leave.model), self._grace(leave)
        if "rolling" in request.query_params:
            return await self._begin(functools.partial(ReplaceAll, model, grace_s, ""), "model", model)
        return await self._begin(functools.partial(RestartAll, model, grace_s), "model", model)

    async def reload(self, request: Request) -> Response:
        """`POST /admin/reload`."""
        wanted = await small_body(request, Reload, self._settings.body_timeout_s)
        model = self._canonical(wanted.model)
        replace_all = functools.partial(ReplaceAll, model, self._grace(wanted), wanted.checkpoint)
        return await self._begin(replace_all, "model", model)

    def _model(self, change: ModelChange) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            """`POST /admin/models/{name}/load`, `unload` and `reload`."""
            leave = await small_body(request, Leave, self._settings.body_timeout_s)
            model = self._canonical(request.path_params["name"])
            return await self._begin(functools.partial(ChangeModel, change, model, self._grace(leave)), "model", model)

        return endpoint

    def _grace(self, leave: Leave) -> float:
        return self._settings.shutdown_grace_s if leave.grace_s is None else leave.grace_s

    async def _begin(self, message: Callable[[ReplyTo[Operation]], FleetMessage], kind: str, name: str) -> Response:
        try:
            operation: Operation = await self._fleet.ask(message, timeout=ANSWER_S)
            return _answer(operation, 202)
        except KeyError as error:
            code = RefusalCode.WORKER_NOT_FOUND if kind == "worker" else RefusalCode.MODEL_NOT_FOUND
            raise RequestError(code, f"there is no {kind} {name[:128]!r}", field=kind) from error
        except Busy as error:
            raise RequestError(RefusalCode.OPERATION_UNDER_WAY, str(error)) from error


class KeyAdmin:
    """The API keys: their use, and reading their file again. Streams under way are not touched by that: a key is
    checked once for each request."""

    def __init__(self, keys: ApiKeys, settings: GatewaySettings) -> None:
        self._keys = keys
        self._body_s = settings.body_timeout_s
        self._reading = anyio.Lock()

    def routes(self) -> list[Route]:
        """The routes under `/admin`."""
        return [Route(KEYS_PATH, self.keys), Route("/admin/keys/reload", self.reload, methods=["POST"])]

    async def keys(self, _: Request) -> Response:
        """`GET /admin/keys`: the limits of the keys of clients, and their use since the gateway started."""
        limits = self._keys.limits()
        entries = [{"name": name, "limits": limits[name], "use": use} for name, use in self._keys.uses().items()]
        return _json({"keys": entries}, 200)

    async def reload(self, request: Request) -> Response:
        """`POST /admin/keys/reload`: the names of the keys. Without a valid file, the keys stay as they are."""
        await small_body(request, Nothing, self._body_s)
        try:
            async with self._reading:
                lines = await anyio.to_thread.run_sync(self._keys.read)  # the file may be on a network
                change = self._keys.adopt(lines)
        except ApiKeysInvalid as error:
            _log.error("keys_not_reloaded", problem=str(error))
            raise RequestError(RefusalCode.KEYS_NOT_RELOADED, str(error)) from error
        _log.info("keys_reloaded", keys=change.names, added=change.added, removed=change.removed)
        return _json({"keys": change}, 200)


def _json(value: Any, status: int) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _answer(operation: Operation | None, status: int) -> Response:
    value: dict[str, Any] = {"operation": None}
    if operation is not None:
        value["operation"] = {
            "number": operation.number,
            "name": operation.name,
            "outcome": operation.outcome.value,
            "lines": operation.lines,
        }
    return _json(value, status)
