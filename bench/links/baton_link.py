"""Baton's own link."""

import asyncio

from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from bench.harness.child_process import wait_for
from bench.links.meter import BYE, GO, SMALL, STEP, ChildSpec, Figures, Meter
from protocol.codec import encode


async def link_parent(trips: int, frames: int) -> Figures:
    meter, over = Meter(trips, frames), asyncio.Event()
    with LocalEndpoint() as endpoint:

        def receive(message: list[bytes]) -> None:
            for frame in message:
                answer = meter.receive(frame)
                if answer:
                    link.send_nowait([answer])
                elif answer is None:
                    over.set()

        link = Link.bind(endpoint.address, receive)
        with ChildSpec("link", endpoint.address, frames).start() as process:
            await wait_for(over, process)
            link.send_nowait([BYE])
            await asyncio.to_thread(process.wait)
            link.close(0)
    return meter.figures


async def link_child(address: str, frames: int) -> None:
    over, go = asyncio.Event(), asyncio.Event()

    def receive(message: list[bytes]) -> None:
        for frame in message:
            if frame == GO:
                go.set()
            elif frame == BYE:
                over.set()
            else:
                link.send_nowait([frame])

    link = Link.connect(address, receive)
    link.send_nowait([SMALL])
    await go.wait()
    for _ in range(frames):
        await link.send([encode(STEP)])
    await over.wait()
    link.close()
