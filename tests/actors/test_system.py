"""Actors: messages, replies, ends, and cancellation at any moment."""

import asyncio
from typing import Any

import anyio
import pytest

from actors.actor import Actor, ActorStopped, AskFailed, AskTimeout, Ref, ReplySlot, Terminated
from actors.mailbox import MailboxFull
from actors.supervision.policy import NeverRestart
from actors.system import TURN, ActorSystem
from tests.actors.counter import AT_ONCE, Block, Counter, Fail, Watch

pytestmark = pytest.mark.anyio


async def test_messages_are_handled_in_order_and_asks_are_answered() -> None:
    diary: list[str] = []
    async with ActorSystem() as system:
        ref = system.spawn("c", lambda: Counter(diary))
        for number in range(200):
            ref.tell(number)
        assert await ref.ask(1, timeout=10) == sum(range(200)) + 1
        ref.stop()
        assert await ref.wait_stopped() == Terminated("c", "stopped", failed=False)
        assert ref.stopped
        with pytest.raises(ActorStopped, match="'c' takes no more"):
            ref.tell(1)
        with pytest.raises(ActorStopped):
            await ref.ask(1, timeout=1)
    assert diary == ["started", "stopped: None"]


async def test_messages_that_wait_are_handled_before_a_stop() -> None:
    async with ActorSystem() as system:
        ref = system.spawn("c", lambda: Counter([]))
        async with anyio.create_task_group() as group:
            replies: list[int] = []

            async def ask() -> None:
                replies.append(await ref.ask(5, timeout=10))

            group.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            ref.stop()
        assert replies == [5]


async def test_an_ask_past_its_deadline_is_not_handled_later() -> None:
    gate = anyio.Event()
    async with ActorSystem() as system:
        ref = system.spawn("c", lambda: Counter([]))
        ref.tell(Block(gate))
        with pytest.raises(AskTimeout, match=r"0\.01 s"):
            await ref.ask(1000, timeout=0.01)
        gate.set()
        assert await ref.ask(1, timeout=10) == 1
        ref.stop()


@pytest.mark.parametrize("seconds", [float("inf"), float("nan")])
async def test_an_ask_has_a_deadline(seconds: float) -> None:
    async with ActorSystem() as system:
        ref = system.spawn("c", lambda: Counter([]))
        with pytest.raises(ValueError, match="timeout"):
            await ref.ask(1, timeout=seconds)
        ref.stop()


async def test_a_full_mailbox_refuses_but_for_what_is_urgent() -> None:
    gate = anyio.Event()
    async with ActorSystem() as system:
        ref = system.spawn("c", lambda: Counter([]), capacity=1, reserve=1)
        ref.tell(Block(gate))
        await anyio.wait_all_tasks_blocked()
        ref.tell(1)
        with pytest.raises(MailboxFull):
            ref.tell(1)
        with pytest.raises(MailboxFull):
            await ref.ask(1, timeout=1)
        ref.tell(1, urgent=True)
        gate.set()
        ref.stop()


async def test_those_who_asked_an_actor_that_ended_are_told() -> None:
    gate = anyio.Event()
    outcomes: list[str] = []

    async def ask(ref: Ref[Any], message: Any) -> None:
        try:
            await ref.ask(message, timeout=60)
        except (ActorStopped, AskFailed) as error:
            outcomes.append(type(error).__name__)

    async with ActorSystem() as system:
        ref = system.spawn("c", lambda: Counter([]), policy=NeverRestart())
        ref.tell(Block(gate))
        async with anyio.create_task_group() as group:
            for message in (Fail("x"), 1, 2):
                group.start_soon(ask, ref, message)
            await anyio.wait_all_tasks_blocked()
            gate.set()
    assert sorted(outcomes) == ["ActorStopped", "ActorStopped", "AskFailed"]


async def test_a_cancelled_system_answers_every_ask_and_ends_every_actor() -> None:
    diary: list[str] = []
    outcomes: list[str] = []
    async with anyio.create_task_group() as outside:
        async with ActorSystem() as system:
            ref = system.spawn("c", lambda: Counter(diary))

            async def ask(message: Any) -> None:
                try:
                    await ref.ask(message, timeout=60)
                except ActorStopped as error:
                    outcomes.append(str(error))

            outside.start_soon(ask, Block(anyio.Event()))
            outside.start_soon(ask, 1)
            await anyio.wait_all_tasks_blocked()
            system.cancel()
        assert diary == ["started", "blocked", "stopped: None"]
    assert outcomes == ["actor 'c' was cancelled", "actor 'c' ended: cancelled"]
    assert await ref.wait_stopped() == Terminated("c", "cancelled", failed=False)


@pytest.mark.parametrize("end", ["stop", "fail", "before"])
async def test_a_watcher_is_told_exactly_once(end: str) -> None:
    diary: list[str] = []
    async with ActorSystem() as system:
        watcher = system.spawn("watcher", lambda: Counter(diary), capacity=1, reserve=0)
        watched = system.spawn("watched", lambda: Counter([]), policy=NeverRestart())
        if end == "before":
            watched.stop()
            await watched.wait_stopped()
        await watcher.ask(Watch(watched), timeout=10)
        await watcher.ask(Watch(watched), timeout=10)
        gate = anyio.Event()
        watcher.tell(Block(gate))
        await anyio.wait_all_tasks_blocked()
        if end != "before":
            watcher.tell(0)  # takes the only place; the notice comes all the same
        if end == "stop":
            watched.stop()
        elif end == "fail":
            watched.tell(Fail("x"))
        await watched.wait_stopped()
        gate.set()
        await anyio.wait_all_tasks_blocked()
        await watcher.ask(0, timeout=10)
        watcher.stop()
    told = [line for line in diary if line.startswith("watched")]
    expected = "watched: is not restarted after a failure: x" if end == "fail" else "watched: stopped"
    assert told == [expected]


async def test_an_actor_with_much_to_do_lets_others_run() -> None:
    handled: list[int] = []

    class Quick(Actor[int]):
        async def handle(self, message: int) -> None:
            handled.append(message)

    async with ActorSystem() as system:
        ref = system.spawn("q", Quick, capacity=10 * TURN)
        for number in range(10 * TURN):
            ref.tell(number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(handled) <= 3 * TURN
        ref.stop()
    assert handled == list(range(10 * TURN))


async def test_a_reply_slot_is_filled_once() -> None:
    slot: ReplySlot[int] = ReplySlot()
    slot.resolve(1)
    slot.resolve(2)
    slot.fail(LookupError())
    assert await slot.wait(1) == 1


@pytest.mark.parametrize("steps", range(12))
async def test_a_cancel_at_any_moment_leaves_nothing(steps: int) -> None:
    """Cancel the asker, then the system, after each possible number of turns of the loop."""
    before = asyncio.all_tasks()
    diary: list[str] = []
    async with anyio.create_task_group() as group:

        async def life() -> None:
            async with ActorSystem() as system:
                ref = system.spawn("c", lambda: Counter(diary), policy=AT_ONCE)
                for message in (1, Fail("x"), Block(anyio.Event())):
                    with anyio.move_on_after(60):
                        try:
                            await ref.ask(message, timeout=60)
                        except AskFailed:
                            pass

        group.start_soon(life)
        for _ in range(steps):
            await asyncio.sleep(0)
        group.cancel_scope.cancel()
    assert asyncio.all_tasks() == before
    assert diary.count("started") == len([line for line in diary if line.startswith("stopped")])
