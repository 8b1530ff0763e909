"""Read-only endpoints about the gateway itself: health, workers and metrics."""

import asyncio
import os
from typing import Any

import anyio.lowlevel
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from actors.supervision.worker import LastFailure, WorkerState, WorkerStatus
from baton_serve import __version__
from gateway.metrics.metrics import CONTENT_TYPE
from gateway.routing.router import Router
from gateway.routing.worker_handle import WorkerHandle
from gateway.settings import GatewaySettings


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


class Status:
    """Each method answers one route, and changes nothing."""

    def __init__(self, router: Router, settings: GatewaySettings) -> None:
        self._router = router
        self._settings = settings
        self._retry = {"retry-after": str(settings.retry_after_s)}

    async def health(self, _: Request) -> Response:
        """`GET /health`: 200 when a model can be used, as `/health/ready` without its details."""
        if self._can_serve(self._progressing()):
            return _json({"status": "ready"})
        return _json({"status": self._not_ready}, 503, self._retry)

    async def version(self, _: Request) -> Response:
        """`GET /version`."""
        return _json({"version": __version__})

    async def live(self, _: Request) -> Response:
        """`GET /health/live`: the event loop runs."""
        return _json({"status": "live"})

    async def ready(self, _: Request) -> Response:
        """`GET /health/ready`: 200 when requests are admitted, and a worker is ready and has made progress lately, or a
        model is loaded when it is asked for.

        `states` has the state of each model; `given_up` lists the workers that are not restarted.
        """
        given_up = [handle.name for handle in self._router.pool if handle.status.state is WorkerState.GIVEN_UP]
        progressing = self._progressing()
        states = {name: self._router.models.describe(name).state for name in progressing}
        details = {"models": progressing, "states": states, "given_up": given_up}
        if self._can_serve(progressing):
            return _json({"status": "ready"} | details)
        return _json({"status": self._not_ready} | details, 503, self._retry)

    @property
    def _not_ready(self) -> str:
        return "draining" if self._router.admission.draining else "not ready"

    def _can_serve(self, progressing: dict[str, bool]) -> bool:
        loads = self._router.pool.catalog.loads_on_demand
        return (any(progressing.values()) or loads) and not self._router.admission.draining

    def _progressing(self) -> dict[str, bool]:
        """Return whether a worker of each model is ready and has made progress lately."""
        now = asyncio.get_running_loop().time()
        timeout_s, pool = self._settings.progress_timeout_s, self._router.pool
        return {name: any(handle.progressing(now, timeout_s) for handle in pool.of(name)) for name in pool.models()}

    async def workers(self, _: Request) -> Response:
        """`GET /admin/workers`."""
        now = asyncio.get_running_loop().time()
        return _json({"workers": [_worker(handle, now) for handle in self._router.pool]})

    async def models(self, _: Request) -> Response:
        """`GET /admin/models`."""
        return _json({"models": [self._router.models.describe(name) for name in self._router.models.names()]})

    async def gateway(self, _: Request) -> Response:
        """`GET /admin/gateway`: the id of this process."""
        return _json({"pid": os.getpid()})

    async def metrics(self, _: Request) -> Response:
        """`GET /metrics`."""
        families = []
        for family in self._router.metrics.families():
            families.append(family)
            await anyio.lowlevel.checkpoint()
        return Response(b"".join(families), headers={"content-type": CONTENT_TYPE.decode()})


def _device(status: WorkerStatus) -> str | None:
    """The device in use; until that is known, the requested one."""
    if status.ready is not None and status.ready.device:
        return status.ready.device
    return None if status.hello is None else status.hello.device


def _failure(last: LastFailure, now: float) -> dict[str, Any]:
    return {
        "incarnation": last.incarnation,
        "origin": last.origin.value,
        "reason": last.reason,
        "ago_s": round(max(0.0, now - last.at), 3),
    }


def _worker(handle: WorkerHandle, now: float) -> dict[str, Any]:
    status = handle.status
    hello, gauges = status.hello, status.gauges
    return {
        "name": handle.name,
        "model": handle.model,
        "backend": None if hello is None else hello.backend,
        "device": _device(status),
        "pid": status.pid,
        # Of a remote worker, whose pid is that of its own machine.
        "address": status.address or None,
        "incarnation": status.incarnation,
        "state": status.state.value,
        "role": handle.role.value,
        "phases": handle.phases,
        "circuit": handle.breaker.state(now).value,
        "restarts": status.restarts,
        "reason": status.reason,
        "last_failure": None if status.last_failure is None else _failure(status.last_failure, now),
        "slots_total": 0 if hello is None else hello.slots,
        "slots_active": gauges.slots_active,
        "queue_depth": gauges.queue_depth,
        "steps": gauges.steps,
        "slowest_step_s": gauges.slowest_step_ms / 1000,
        "hang_after_s": status.hang_s,
        # A worker without a process has made none.
        "last_progress_s": None if status.pid is None else round(max(0.0, now - status.last_progress), 3),
    }
