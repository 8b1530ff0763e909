"""Outbox: keeps the order when the link has no room, and reports when there is room again."""

from collections.abc import Sequence

import anyio
import pytest

from actors.transport.link import DRAIN_FRAMES, LinkClosed, LinkFull
from protocol.codec import decode_event
from protocol.events import Event, Gauges, Heartbeat
from workers.process.outbox import Outbox


def heartbeat(number: int) -> Heartbeat:
    return Heartbeat(Gauges(steps=number))


class NarrowLink:
    """A link with room for what the test gives it."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.closed = False
        self.messages: list[list[Event]] = []
        self.more = anyio.Event()

    def send_nowait(self, frames: Sequence[bytes]) -> None:
        if self.closed:
            raise LinkClosed("closed")
        if not self.room:
            raise LinkFull("full")
        self.room -= 1
        self.messages.append([decode_event(frame) for frame in frames])

    async def send(self, frames: Sequence[bytes]) -> None:
        while True:
            try:
                return self.send_nowait(frames)
            except LinkFull:
                await self.more.wait()

    def widen(self, room: int) -> None:
        self.room += room
        self.more.set()
        self.more = anyio.Event()


def outbox(link: NarrowLink, calls: list[str]) -> Outbox:
    return Outbox(link, lambda: calls.append("room"))  # type: ignore[arg-type]


def test_a_message_is_sent_at_once_if_there_is_room() -> None:
    link = NarrowLink(2)
    box = outbox(link, [])
    box.send_nowait([heartbeat(1), heartbeat(2)])
    box.send_nowait([])
    assert (link.messages, box.sent, box.blocked) == ([[heartbeat(1), heartbeat(2)]], 1, False)


def test_a_message_has_its_bound_of_frames() -> None:
    link = NarrowLink(9)
    outbox(link, []).send_nowait([heartbeat(n) for n in range(2 * DRAIN_FRAMES + 1)])
    assert [len(message) for message in link.messages] == [DRAIN_FRAMES, DRAIN_FRAMES, 1]


def test_messages_keep_their_order_without_room() -> None:
    async def run() -> None:
        link, calls = NarrowLink(1), list[str]()
        box = outbox(link, calls)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(box.run)
            for number in range(4):
                box.send_nowait([heartbeat(number)])
            assert (box.blocked, len(link.messages)) == (True, 1)
            link.widen(2)
            await anyio.wait_all_tasks_blocked()
            assert (box.blocked, len(link.messages), calls) == (True, 3, [])
            link.widen(2)
            await anyio.wait_all_tasks_blocked()
            assert (box.blocked, calls) == (False, ["room"])
            box.send_nowait([heartbeat(4)])
            assert link.messages == [[heartbeat(number)] for number in range(5)]
            tasks.cancel_scope.cancel()

    anyio.run(run)


@pytest.mark.parametrize("room", [0, 1])
def test_frames_for_a_lost_link_are_dropped_and_the_task_ends(room: int) -> None:
    async def run() -> None:
        link = NarrowLink(0)
        box = outbox(link, [])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(box.run)
            box.send_nowait([heartbeat(1)])
            link.closed = True
            link.widen(room)
        assert link.messages == []

    anyio.run(run)
