"""Each fault of a link, observed at the other end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from actors.transport.endpoint import LocalEndpoint
from actors.transport.link import Link
from tests.actors.transport.ends import End
from workers.faults.faulty_link import INVALID_FRAME, FaultyLink, connect
from workers.faults.plan import Fault

pytestmark = pytest.mark.anyio


class Gateway(End):
    """The listening end."""

    async def received(self, count: int, losses: int = 0) -> None:
        await self.until(lambda: len(self.messages) >= count and len(self.lost) >= losses)


@asynccontextmanager
async def linked(*faults: Fault) -> AsyncIterator[tuple[Gateway, Link]]:
    gateway = Gateway()
    with LocalEndpoint() as endpoint:
        here = Link.bind(endpoint.address, gateway.receive, on_lost=gateway.gone)
        worker = connect(endpoint.address, lambda frames: None, lambda reason: None, faults)
        try:
            await worker.send([b"1"])
            await gateway.received(1)
            yield gateway, worker
        finally:
            worker.close(0)
            here.close(0)


async def test_a_plan_without_faults_of_the_link_is_a_plain_link() -> None:
    async with linked(Fault("kill"), Fault("no_memory")) as (_, worker):
        assert type(worker) is Link


async def test_a_lost_message_is_noticed_at_the_next() -> None:
    async with linked(Fault("drop_message", call=2)) as (gateway, worker):
        assert isinstance(worker, FaultyLink)
        worker.send_nowait([b"2"])
        worker.send_nowait([b"3"])
        await gateway.received(1, losses=1)
        assert gateway.messages == [[b"1"]]
        assert "message 2 came where 1 was due" in gateway.lost[0]


async def test_a_garbled_message_is_an_invalid_frame() -> None:
    async with linked(Fault("garble_message", call=2, calls=2)) as (gateway, worker):
        for text in (b"2", b"3", b"4"):
            worker.send_nowait([text])
        await gateway.received(4)
        assert gateway.messages == [[b"1"], [INVALID_FRAME], [INVALID_FRAME], [b"4"]]


async def test_a_message_over_its_bound_ends_the_connection() -> None:
    async with linked(Fault("oversize_message", call=2)) as (gateway, worker):
        worker.send_nowait([b"2"])
        await gateway.received(1, losses=1)
        assert gateway.messages == [[b"1"]]


async def test_late_messages_keep_their_order_and_delay_later_ones() -> None:
    async with linked(Fault("slow_link", call=2, calls=2, seconds=0.05)) as (gateway, worker):
        for text in (b"2", b"3", b"4"):
            worker.send_nowait([text])
        assert worker.sent == 4, "nobody waits for a slow link"
        assert isinstance(worker, FaultyLink)
        assert len(worker._late or ()) == 3, "nothing has left yet, not even what is not slow itself"
        await gateway.received(4)
        assert (gateway.messages, gateway.lost) == ([[b"1"], [b"2"], [b"3"], [b"4"]], [])
