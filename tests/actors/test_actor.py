"""Actors: messages, replies, watchers, tasks, children, failures, and cancellation at any moment."""

import asyncio
import functools
from typing import Any

import anyio
import pytest
import structlog

from actors.actor import (
    MAX_DEFERRED,
    Actor,
    ActorStopped,
    AskFailed,
    AskTimeout,
    DeferredReplies,
    OnFailure,
    Ref,
    ReplyTo,
    TooManyAsks,
)
from actors.mailbox import CAPACITY, RESERVE, MailboxFull
from actors.system import ActorSystem
from tests.actors.counter import Add, AnswerAt, Counter, Fail, Notify
from tests.actors.inbox import Inbox

pytestmark = pytest.mark.anyio

WAIT_S = 60.0


class TestAsk:
    async def test_it_is_answered_at_once_or_when_the_state_allows_it(self) -> None:
        async with ActorSystem() as system:
            ref = system.spawn("c", Counter())
            assert await ref.ask(functools.partial(Add, 1), timeout=WAIT_S) == 1
            async with anyio.create_task_group() as group:
                answers: list[int] = []

                async def wait() -> None:
                    answers.append(await ref.ask(functools.partial(AnswerAt, 10), timeout=WAIT_S))

                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                ref.tell(Add(8))
                assert answers == []
                ref.tell(Add(8))
            assert answers == [17]
            ref.stop()

    async def test_past_its_deadline_it_is_not_answered_and_not_begun(self) -> None:
        diary: list[str] = []
        async with ActorSystem() as system:
            counter = Counter(diary)
            ref = system.spawn("c", counter)
            with pytest.raises(AskTimeout, match=r"0\.01 s"):
                await ref.ask(functools.partial(AnswerAt, 10), timeout=0.01)
            assert counter.later[0].reply.done, "so the actor can tell"
            late = system.spawn("late", Counter(diary))
            asking = late.ask(functools.partial(Add, 1000), timeout=WAIT_S)
            asking.send(None)  # up to its wait, before the actor has started: the message waits
            with pytest.raises(asyncio.CancelledError):
                asking.throw(asyncio.CancelledError())
            assert await late.ask(functools.partial(Add, 1), timeout=WAIT_S) == 1
            ref.stop()
            late.stop()

    @pytest.mark.parametrize("seconds", [float("inf"), float("nan")])
    async def test_it_has_a_deadline(self, seconds: float) -> None:
        async with ActorSystem() as system:
            ref = system.spawn("c", Counter())
            with pytest.raises(ValueError, match="timeout"):
                await ref.ask(functools.partial(Add, 1), timeout=seconds)
            ref.stop()

    async def test_a_failed_handler_is_an_error_of_its_own(self) -> None:
        async with ActorSystem() as system:
            ref = system.spawn("c", Counter())
            with structlog.testing.capture_logs(), pytest.raises(AskFailed, match="'c' failed") as caught:
                await ref.ask(functools.partial(Fail, "x"), timeout=WAIT_S)
            assert isinstance(caught.value.__cause__, LookupError)
            ref.stop()

    async def test_an_actor_that_ends_leaves_nobody_waiting(self) -> None:
        outcomes: list[str] = []

        async def ask(ref: Ref[Any]) -> None:
            with pytest.raises(ActorStopped, match="'c' has ended") as caught:
                await ref.ask(functools.partial(AnswerAt, 10), timeout=WAIT_S)
            outcomes.append(str(caught.value))

        async with anyio.create_task_group() as outside, ActorSystem() as system:
            ref = system.spawn("c", Counter())
            outside.start_soon(ask, ref)
            await anyio.wait_all_tasks_blocked()
        assert len(outcomes) == 1
        with pytest.raises(ActorStopped):
            ref.tell(Add(1))
        await ask(ref)

    async def test_the_first_answer_counts(self) -> None:
        for first_fails in (False, True):
            reply: ReplyTo[int] = ReplyTo()
            if first_fails:
                reply.fail(LookupError("first"))
            reply.send(1)
            reply.fail(LookupError("second"))
            reply.send(2)
            if first_fails:
                with pytest.raises(LookupError, match="first"):
                    await reply.wait(WAIT_S)
            else:
                assert await reply.wait(WAIT_S) == 1


async def test_deferred_replies_are_bounded_at_the_edge() -> None:
    deferred = DeferredReplies()
    settled: list[int] = []
    replies: list[ReplyTo[int]] = [ReplyTo() for _ in range(MAX_DEFERRED + 2)]
    for number, reply in enumerate(replies[:-1]):
        deferred.add(reply, lambda number=number: number if settled else None)  # type: ignore[misc]
    assert [reply.done for reply in replies] == [False] * MAX_DEFERRED + [True, False]
    with pytest.raises(TooManyAsks, match=f"{MAX_DEFERRED} asks"):
        await replies[-2].wait(WAIT_S)
    with pytest.raises(AskTimeout):
        await replies[0].wait(0.0)
    deferred.add(replies[-1], lambda: -1 if settled else None)
    settled.append(1)
    deferred.settle()
    assert [await reply.wait(WAIT_S) for reply in replies[1:-2]] == list(range(1, MAX_DEFERRED))
    assert await replies[-1].wait(WAIT_S) == -1, "one that waits no more makes room"


class TestWatch:
    @pytest.mark.parametrize("end", ["stop", "failure", "before"])
    async def test_a_watcher_learns_of_the_end_exactly_once(self, end: str) -> None:
        watcher = Counter()
        watcher.hold = anyio.Event()
        with structlog.testing.capture_logs():
            async with ActorSystem() as system:
                watching = system.spawn("watcher", watcher)
                ref = system.spawn("c", Counter(), on_failure=OnFailure.STOP)
                if end != "before":
                    ref.watch(watching)
                    ref.watch(watching)
                await anyio.wait_all_tasks_blocked()
                if end == "failure":
                    ref.tell(Fail("x"))
                else:
                    ref.stop()
                with anyio.CancelScope(shield=True):
                    terminated = await ref.wait_stopped()
                    ref.watch(watching)
                    ref.watch(watching)
                watcher.hold.set()
                watching.stop()
        assert [line for line in watcher.diary if "Terminated" in line] == [str(terminated)]
        assert (str(terminated.error) == "x") == (end == "failure")

    async def test_watchers_are_notified_in_order_of_what_they_asked_for(self) -> None:
        diary: list[str] = []
        async with ActorSystem() as system:
            ref = system.spawn("c", Counter())
            ref.watch(system.spawn("all", Counter(diary)))
            ref.watch(system.spawn("texts", Counter(diary)), str)
            ref.watch(system.spawn("numbers", Counter(diary)), int, float)
            await anyio.wait_all_tasks_blocked()
            diary.clear()
            for notice in ("a", 1, 2.5, None):
                ref.tell(Notify(notice))
            assert diary == ["a", "a", "1", "1", "2.5", "2.5", "None"]

    async def test_a_watcher_that_has_ended_is_passed_over(self) -> None:
        diary: list[str] = []
        async with ActorSystem() as system:
            ref, gone = system.spawn("c", Counter()), system.spawn("gone", Counter())
            ref.watch(gone)
            ref.watch(system.spawn("there", Counter(diary)))
            gone.stop()
            await gone.wait_stopped()
            ref.tell(Notify("a"))
            assert diary[-1] == "a"

    async def test_a_watcher_without_room_is_a_failure_of_the_one_who_notifies(self) -> None:
        """The notifier gets an error. Urgent messages still have room, and the end always."""
        stuck = Counter()
        async with ActorSystem() as system:
            ref = system.spawn("c", Counter(), on_failure=OnFailure.STOP)
            await anyio.wait_all_tasks_blocked()
            watching = system.spawn("stuck", stuck)  # it handles nothing before the next turn of the loop
            other = Inbox()
            ref.watch(watching)
            ref.watch(other.ref)
            for number in range(CAPACITY):
                watching.tell(number)
            ref.tell(Notify("urgent", urgent=True))
            for number in range(RESERVE - 1):
                watching.tell(number, urgent=True)
            with structlog.testing.capture_logs() as logs:
                ref.tell(Notify("too much", urgent=True))
            assert isinstance(logs[0]["exc_info"], MailboxFull)
            assert other.messages == ["urgent", "too much"], "the others get it all the same"
            assert isinstance((await ref.wait_stopped()).error, MailboxFull)
            await anyio.wait_all_tasks_blocked()
            assert any("Terminated" in line for line in stuck.diary)
            assert "urgent" in stuck.diary
            assert "too much" not in stuck.diary


class TestFailure:
    """An exception in a handler or a task does not reach the sender, and is logged."""

    @pytest.mark.parametrize("rule", OnFailure)
    async def test_the_supervisors_rule(self, rule: OnFailure) -> None:
        counter = Counter()
        async with ActorSystem() as system:
            ref = system.spawn("c", counter, on_failure=rule)
            ref.tell(Add(1))
            ref.tell(Fail("x"))
            with structlog.testing.capture_logs() as logs:
                await anyio.wait_all_tasks_blocked()
            (line,) = logs
            assert (line["event"], line["actor"], line["at"], str(line["exc_info"])) == (
                "actor_failed",
                "c",
                "Fail",
                "x",
            )
            if rule is OnFailure.STOP:
                assert str((await ref.wait_stopped()).error) == "x"
            else:
                expected = {OnFailure.RESUME: 2, OnFailure.RESTART: 1}[rule]
                assert await ref.ask(functools.partial(Add, 1), timeout=WAIT_S) == expected
                assert ref.end is None
                ref.stop()

    async def test_one_that_cannot_begin_anew_is_ended(self) -> None:
        counter = Counter()
        async with ActorSystem() as system:
            ref = system.spawn("c", counter, on_failure=OnFailure.RESTART)
            ref.tell(Fail("for good"))
            with structlog.testing.capture_logs() as logs:
                assert str((await ref.wait_stopped()).error) == "for good"
        assert [line["event"] for line in logs] == ["actor_failed", "actor_not_restarted"]
        assert counter.diary == ["started", "restarted: for good", "stopped"]

    async def test_a_task_and_a_hook(self) -> None:
        class Fragile(Counter):
            def started(self) -> None:
                self.context.start_soon(self.work)
                raise LookupError("in started")

            async def work(self) -> None:
                raise LookupError("in a task")

            async def stopped(self) -> None:
                raise LookupError("in stopped")

        with structlog.testing.capture_logs() as logs:
            async with ActorSystem() as system:
                ref = system.spawn("c", Fragile())
                assert await ref.ask(functools.partial(Add, 1), timeout=WAIT_S) == 1
                ref.stop()
        assert [(line["at"], str(line["exc_info"])) for line in logs] == [
            ("started", "in started"),
            ("work", "in a task"),
            ("stopped", "in stopped"),
        ]

    async def test_an_end_that_hangs_is_bounded(self) -> None:
        counter = Counter()
        counter.hold = anyio.Event()
        async with ActorSystem() as system:
            ref = system.spawn("c", counter, stop_s=0.01)
            ref.stop()
            assert (await ref.wait_stopped()).error is None
        assert counter.diary == ["started"]


class Parent(Actor[Any]):
    def __init__(self, diary: list[str]) -> None:
        self.diary = diary

    def started(self) -> None:
        self.child = self.context.spawn("child", Counter(self.diary))
        self.context.start_soon(self.work)

    async def work(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self.diary.append("task ended")

    def handle(self, message: Any) -> None:
        self.diary.append(f"parent: {message}")

    async def stopped(self) -> None:
        self.diary.append("parent stopped")
        assert self.child.end is not None
        self.context.ref.tell("handled to the last")


@pytest.mark.parametrize("cancel", [False, True], ids=["stopped", "cancelled"])
async def test_children_and_tasks_end_before_their_parent(cancel: bool) -> None:
    diary: list[str] = []
    async with ActorSystem() as system:
        ref = system.spawn("parent", Parent(diary))
        await anyio.wait_all_tasks_blocked()
        if not cancel:
            ref.stop()
            await ref.wait_stopped()
    assert sorted(diary[1:3]) == ["stopped", "task ended"]
    assert diary[3:] == ["parent stopped", "parent: handled to the last"]


async def test_messages_before_its_start_are_handled_after_it() -> None:
    counter = Counter()
    async with ActorSystem() as system:
        ref = system.spawn("c", counter)
        ref.tell("early")
        assert counter.diary == []
        await anyio.wait_all_tasks_blocked()
        assert counter.diary == ["started", "early"]
        ref.stop()


@pytest.mark.parametrize("steps", range(12))
async def test_a_cancel_at_any_moment_leaves_nothing(steps: int) -> None:
    """Cancel the asker, then the system, after each possible number of turns of the loop."""
    before = asyncio.all_tasks()
    diary: list[str] = []
    async with anyio.create_task_group() as group:

        async def life() -> None:
            async with ActorSystem() as system:
                ref = system.spawn("c", Counter(diary), on_failure=OnFailure.RESTART)
                for message in (Add, Fail, AnswerAt):
                    given: Any = "x" if message is Fail else 5
                    with anyio.move_on_after(WAIT_S):
                        try:
                            await ref.ask(functools.partial(message, given), timeout=WAIT_S)
                        except AskFailed:
                            pass

        group.start_soon(life)
        with structlog.testing.capture_logs():
            for _ in range(steps):
                await asyncio.sleep(0)
        group.cancel_scope.cancel()
    assert asyncio.all_tasks() == before
    assert diary.count("started") == diary.count("stopped")
