"""A worker's actor over a peer without a process: the test sends its frames, and sees what becomes of its link."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from actors.actor import Context, OnFailure
from actors.join.request import JoinRequest
from actors.process.exit_cause import Origin
from actors.supervision.life import Life, Terms
from actors.supervision.messages import Ended, Frames, Started, StartWorker
from actors.supervision.peer import Report
from actors.supervision.worker_actor import WorkerActor, WorkerRef
from protocol.bounds import PROTOCOL_VERSION
from protocol.codec import decode_command, encode
from protocol.commands import Command, Stop
from protocol.errors import ByeReason
from protocol.events import Bye, Event, Hello
from tests.actors.supervision.lives import READY


class FakeLink:
    """Delivers what `waiting` has when it is drained, as `Link` does. A `Stop` is answered with a `Bye`."""

    def __init__(self, on_message: Callable[[list[bytes]], None]) -> None:
        self.dropped = 0
        self.closed = False
        """Nothing more is delivered."""
        self.waiting: list[list[bytes]] = []
        self.at_once = 1000
        """Messages that `drain_now` delivers."""
        self.sent: list[Command] = []
        self._on_message = on_message

    def drain_now(self) -> bool:
        return all(self.drain_turn() for _ in range(self.at_once))

    def drain_turn(self) -> bool:
        if self.waiting and not self.closed:
            self.deliver(self.waiting.pop(0))
        return bool(self.waiting) and not self.closed

    def deliver(self, frames: list[bytes]) -> None:
        if not self.closed:
            self._on_message(frames)

    def send_nowait(self, frames: Sequence[bytes]) -> None:
        self.sent += map(decode_command, frames)
        if isinstance(self.sent[-1], Stop):
            bye = encode(Bye(ByeReason.STOPPED, ""))
            asyncio.get_running_loop().call_soon(self.deliver, [bye])

    def close(self, linger_s: float = 0.0) -> None:
        self.closed = True


class FakePeer:
    """Implements `Peer`. It reports `Ended` in the next turn of the loop, when it is asked to end."""

    def __init__(self) -> None:
        self.number = 0
        self.ends: list[int] = []
        """The incarnations that were asked to end, each time."""
        self.link: FakeLink
        self.report: Report

    def start(self, number: int, request: JoinRequest | None, report: Report) -> tuple[Any, Started]:
        self.number, self.report = number, report
        self.link = FakeLink(lambda frames: report(Frames(number, frames)))
        return self.link, Started(7)

    def observe(self, silent_s: float, hang_s: float) -> tuple[bool, Origin]:
        return False, Origin.UNKNOWN

    def end(self, ask_s: float) -> None:
        self.ends.append(self.number)
        asyncio.get_running_loop().call_soon(self.report, Ended(self.number))

    def kill(self) -> bool:
        return False

    def say(self, *events: Event) -> None:
        """Let these arrive as one message."""
        self.link.deliver([encode(event) for event in events])

    def serve(self) -> None:
        """Become ready."""
        hello = Hello(PROTOCOL_VERSION, "w", self.number, 7, "m", "b", "d", 4, 100)
        self.say(hello, READY)


async def started(
    context: Context, peer: FakePeer, terms: Terms | None = None, stop_s: float = 10.0
) -> tuple[WorkerRef, WorkerActor]:
    """Spawn the actor of worker `w`, whose first incarnation has been started."""
    actor = WorkerActor(Life("w", terms or Terms(), joins=False), peer)
    worker = WorkerRef(actor, context.spawn("w", actor, on_failure=OnFailure.RESTART, stop_s=stop_s))
    worker.ref.tell(StartWorker())
    await anyio.wait_all_tasks_blocked()
    return worker, actor
