"""`GET /admin/live`: what the workers and their streams do now, as events for a page.

Nothing is counted or kept for it: while nobody watches, it costs nothing.
"""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import msgspec
from starlette.types import Receive, Scope, Send

from baton_serve import __version__
from gateway.admin.watchers import MAX_WATCHERS, Watcher, Watchers
from gateway.errors import RefusalCode, RequestError
from gateway.http.access.origins import is_from_elsewhere
from gateway.http.conventions import HttpConventions
from gateway.http.exchange import HttpExchange
from gateway.routing.router import Router
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_handle import WorkerHandle
from gateway.settings import GatewaySettings
from protocol.errors import ErrorCode

LIVE_PATH = "/admin/live"
INTERVAL_S = 0.25
"""Time between two snapshots."""
MAX_STREAMS = 512
"""Streams of a snapshot; `streams_left_out` counts the others."""
PAGE_REQUEST = "page-"
"""The beginning of the request ids that the page makes, at random. A snapshot has those, so that a page finds its own
streams, and no others, which may say something about their clients."""


class LivePicture:
    """Renders the router's workers and sequences as an event, at most once in half an interval."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._clock = asyncio.get_running_loop().time
        self._made_at = float("-inf")
        self._event = b""

    def event(self) -> bytes:
        """The event of a snapshot."""
        now = self._clock()
        if now - self._made_at >= INTERVAL_S / 2:
            self._made_at = now
            self._event = b"data: " + msgspec.json.encode(self.snapshot(now)) + b"\n\n"
        return self._event

    def snapshot(self, now: float) -> dict[str, Any]:
        """The router at this moment. `now` is the loop's time."""
        router = self._router
        sequences = router.sequences()
        handles = list(router.pool)
        waiting = router.waiting()
        return {
            "version": __version__,
            "gateway": os.getpid(),
            "interval_s": INTERVAL_S,
            "models": [{"name": name, "waiting": waiting[name]} for name in router.models.names()],
            "workers": [_worker(handle) for handle in handles],
            "streams": [_stream(sequence, now) for sequence in sequences[:MAX_STREAMS]],
            "streams_left_out": max(0, len(sequences) - MAX_STREAMS),
            "replays": router.metrics.replays(),
        }


def _worker(handle: WorkerHandle) -> dict[str, Any]:
    status = handle.status
    handle.refresh(status)
    hello, ready, gauges, total = status.hello, status.ready, status.gauges, handle.counters.total
    return {
        "name": handle.name,
        "model": handle.model,
        "backend": None if hello is None else hello.backend,
        "device": (ready.device if ready is not None else "") or (None if hello is None else hello.device),
        "pid": status.pid,
        "address": status.address or None,
        "incarnation": status.incarnation,
        "state": status.state.value,
        "role": handle.role.value,
        "phases": handle.phases,
        "reason": status.reason,
        "restarts": status.restarts,
        "slots": handle.slots,
        "slots_active": gauges.slots_active,
        "queue_depth": gauges.queue_depth,
        "memory_bytes": gauges.memory_bytes,
        "kv_tokens": gauges.kv_tokens,
        "capabilities": [] if ready is None else _names(ready.capabilities),
        "decode_tokens": total("decode_tokens"),
        "prefill_tokens": total("prefill_tokens"),
        "prefix_hits": total("prefix_hits"),
        "prefix_tokens": total("prefix_tokens"),
    }


def _names(capabilities: msgspec.Struct) -> list[str]:
    return [name for name in ("chat", "tools", "reasoning", "grammar", "images") if getattr(capabilities, name)]


def _stream(sequence: LiveSequence, now: float) -> dict[str, Any]:
    request_id = sequence.request.request_id
    return {
        "id": sequence.order,
        "model": sequence.request.model,
        "worker": sequence.worker or None,
        "tokens": len(sequence.tokens),
        "replayed": sequence.cause is not None,
        "age_s": round(now - sequence.opened_at, 1),
        "request": request_id if request_id.startswith(PAGE_REQUEST) else None,
    }


class LiveEndpoint:
    """An ASGI app that sends a snapshot each `INTERVAL_S`, until the gateway drains or hands over, the client leaves,
    or another one gets its place."""

    def __init__(
        self, router: Router, settings: GatewaySettings, conventions: HttpConventions, retired: Callable[[], bool]
    ) -> None:
        """`retired` tells whether clients have to connect anew, as to the gateway that has taken the port over."""
        self._router = router
        self._retired = retired
        self._settings = settings
        self._conventions = conventions
        self._picture = LivePicture(router)
        self._watchers = Watchers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send, self._settings, self._conventions)
        if is_from_elsewhere(scope):  # it could not read the response, but would have a place
            text = "pages of other origins may not watch; open the page of this server"
            await exchange.refuse(RequestError(RefusalCode.ORIGIN_NOT_ALLOWED, text))
            return
        address = scope["client"]
        watcher = self._watchers.enter(exchange.client or (address[0] if address else ""))
        if watcher is None:
            text = f"{MAX_WATCHERS} clients watch already; `/admin/workers` answers each request"
            await exchange.refuse(RequestError(ErrorCode.OVERLOADED, text, retry_after_s=self._settings.retry_after_s))
            return
        try:
            await exchange.while_connected(partial(self._send, exchange, watcher))
        finally:
            self._watchers.leave(watcher)
            exchange.close()

    async def _send(self, exchange: HttpExchange, watcher: Watcher, scope: anyio.CancelScope) -> None:
        await exchange.start_events(scope, b"text/event-stream")
        while not (self._router.admission.draining or self._retired() or watcher.replaced.is_set()):
            await exchange.events(self._picture.event())
            with anyio.move_on_after(INTERVAL_S):
                await watcher.replaced.wait()
        await exchange.events(b"", more=False)
