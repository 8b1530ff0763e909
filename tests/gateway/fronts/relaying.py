"""A front in the test's process and event loop, over a real link and a real socket."""

import os
from collections.abc import Callable
from typing import Any

import anyio

from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from gateway.fronts.exchange import RelayedExchange
from gateway.fronts.frames import ExchangeOpened, LeaveFront, StopAccepting, ToFront, ToGateway, decode_to_gateway
from gateway.fronts.inbox import GATEWAY_FRAMES, FrameInbox
from gateway.fronts.outbox import FrameOutbox
from gateway.fronts.process import FrontReport
from gateway.fronts.relayed import Answer, RelayedExchanges
from gateway.fronts.server import FrontServer
from gateway.fronts.spec import FrontSettings, FrontSpec
from gateway.http.listener import Listener
from gateway.http.probes import ProbesOnly
from gateway.settings import GatewaySettings


async def serve_relayed(
    app: Any,
    settings: GatewaySettings,
    *,
    shutdown: anyio.Event,
    listener: Listener,
    report: Callable[[FrontReport], None] = lambda report: None,
    stop: anyio.Event | None = None,
) -> None:
    """Do what `gateway.http.server.serve` does, by a front. `report` gets what it tells about itself; `stop` lets it
    accept no more connections."""
    async with anyio.create_task_group() as group:

        def take(frame: ToGateway) -> None:
            if isinstance(frame, FrontReport):
                report(frame)
            else:
                exchanges.take(frame)

        def received(frames: list[bytes]) -> None:
            for frame in frames:
                inbox.add(decode_to_gateway(frame))

        def start(answer: Answer, exchange: RelayedExchange, opened: ExchangeOpened) -> None:
            group.start_soon(answer, exchange, opened)

        async def leave() -> None:
            await shutdown.wait()
            outbox.put(LeaveFront(settings.flush_s))

        async def stop_accepting(stop: anyio.Event) -> None:
            await stop.wait()
            outbox.put(StopAccepting())

        with LocalEndpoint() as end:
            link = Link.bind(end.address, received, on_lost=lambda reason: exchanges.lose())
            outbox: FrameOutbox[ToFront] = FrameOutbox(link)
            inbox: FrameInbox[ToGateway] = FrameInbox(take, GATEWAY_FRAMES)
            probes = ProbesOnly(app, listener.note_refused, settings)
            exchanges = RelayedExchanges(app, probes, outbox, start)
            group.start_soon(outbox.run)
            group.start_soon(leave)
            if stop is not None:
                group.start_soon(stop_accepting, stop)
            spec = FrontSpec(0, FrontSettings.of(settings), os.dup(listener.fileno()), None)
            await FrontServer(spec, end.address, _orphaned).run()
        link.close(0)
        group.cancel_scope.cancel()
    listener.close()


def _orphaned(reason: str) -> None:
    raise AssertionError(f"the gateway's end of the link is there: {reason}")
