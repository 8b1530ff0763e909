"""Actors that fail: restarts, escalation, children, tasks, and hooks that fail themselves."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from actors.actor import Actor, AskFailed, Terminated, Unrecoverable
from actors.supervision.policy import NeverRestart, RestartPolicy
from actors.system import ActorFailed, ActorSystem
from tests.actors.counter import AT_ONCE, Counter, Fail

pytestmark = pytest.mark.anyio


async def test_a_failure_restarts_with_fresh_state_and_the_same_mailbox() -> None:
    diary: list[str] = []
    seen: list[tuple[str, str]] = []
    async with ActorSystem() as system:
        ref = system.spawn(
            "c",
            lambda: Counter(diary),
            policy=AT_ONCE,
            observer=lambda failure, decision: seen.append((str(failure), type(decision).__name__)),
        )
        ref.tell(100)
        ref.tell(Fail("one"))
        assert await ref.ask(1, timeout=10) == 1
        with pytest.raises(AskFailed) as caught:
            await ref.ask(Fail("two"), timeout=10)
        assert isinstance(caught.value.__cause__, LookupError)
        ref.tell(Fail("three"))
        end = await ref.wait_stopped()
    assert end == Terminated("c", "failed 3 times within 300 s: three", failed=True)
    assert seen == [("one", "Restart"), ("two", "Restart"), ("three", "GiveUp")]
    assert diary == [line for text in ("one", "two", "three") for line in ("started", f"stopped: {text}")]


async def test_what_cannot_be_healed_is_not_restarted() -> None:
    class Broken(Actor[str]):
        async def started(self) -> None:
            raise Unrecoverable("wrong version")

    async with ActorSystem() as system:
        end = await system.spawn("b", Broken, policy=AT_ONCE).wait_stopped()
    assert end.reason == "cannot be healed by a restart: wrong version"


class Parent(Actor[Any]):
    def __init__(self, diary: list[str], child: Callable[[], Actor[Any]], **options: Any) -> None:
        self.diary = diary
        self.child = child
        self.options = options

    async def started(self) -> None:
        self.diary.append("parent started")
        self.ref = self.context.spawn("child", self.child, **self.options)

    async def handle(self, message: Any) -> Any:
        self.ref.tell(message)

    async def stopped(self, failure: Exception | None) -> None:
        self.diary.append(f"parent stopped: {failure}")


async def test_children_end_before_their_parent() -> None:
    diary: list[str] = []
    async with ActorSystem() as system:
        ref = system.spawn("parent", lambda: Parent(diary, lambda: Counter(diary)))
        ref.tell(1)
        await anyio.wait_all_tasks_blocked()
        ref.stop()
    assert diary == ["parent started", "started", "stopped: None", "parent stopped: None"]


async def test_an_escalated_failure_is_the_parent_s_and_restarts_both() -> None:
    diary: list[str] = []
    async with ActorSystem() as system:
        escalate = NeverRestart(escalate=True)
        ref = system.spawn("parent", lambda: Parent(diary, lambda: Counter(diary), policy=escalate), policy=AT_ONCE)
        ref.tell(Fail("deep"))
        with anyio.fail_after(10):
            while diary.count("started") < 2:
                await anyio.wait_all_tasks_blocked()
        ref.stop()
    assert diary[2:4] == ["stopped: deep", "parent stopped: actor 'child': is not restarted after a failure"]
    assert diary.count("parent started") == 2


async def test_an_escalation_at_the_root_leaves_the_system() -> None:
    async def live() -> None:
        async with ActorSystem() as system:
            ref = system.spawn("c", lambda: Counter([]), policy=NeverRestart(escalate=True))
            ref.tell(Fail("x"))

    with pytest.raises(ExceptionGroup) as caught:
        await live()
    (error,) = caught.value.exceptions
    assert isinstance(error, ActorFailed)
    assert str(error.__cause__) == "x"


async def test_an_actor_s_task_fails_and_ends_with_it() -> None:
    diary: list[str] = []

    class Busy(Counter):
        async def started(self) -> None:
            await super().started()
            self.context.start_soon(self.work)

        async def work(self) -> None:
            try:
                if self.diary.count("started") == 1:
                    raise LookupError("in the task")
                await anyio.sleep_forever()
            finally:
                self.diary.append("task ended")

    async with ActorSystem() as system:
        ref = system.spawn("c", lambda: Busy(diary), policy=AT_ONCE)
        with anyio.fail_after(10):
            while diary.count("started") < 2:
                await anyio.wait_all_tasks_blocked()
        ref.stop()
    assert diary == ["started", "task ended", "stopped: in the task", "started", "task ended", "stopped: None"]


async def test_a_stop_while_it_waits_for_its_restart() -> None:
    async with ActorSystem() as system:
        patient = RestartPolicy(first_delay_s=3600, max_delay_s=3600)
        ref = system.spawn("c", lambda: Counter([]), policy=patient)
        ref.tell(Fail("x"))
        await anyio.wait_all_tasks_blocked()
        ref.stop()
        assert (await ref.wait_stopped()).reason == "stopped while it waited for its restart"


async def test_a_failure_after_a_stop_is_not_followed_by_a_start() -> None:
    diary: list[str] = []
    async with ActorSystem() as system:
        ref = system.spawn("c", lambda: Counter(diary), policy=AT_ONCE)
        ref.tell(Fail("x"))
        ref.stop()
        await ref.wait_stopped()
    assert diary == ["started", "stopped: x"]


async def test_a_stopped_hook_that_hangs_or_fails_is_bounded() -> None:
    class Hanging(Counter):
        async def stopped(self, failure: Exception | None) -> None:
            await anyio.sleep_forever()

    class Failing(Counter):
        async def stopped(self, failure: Exception | None) -> None:
            raise LookupError("in the hook")

    async with ActorSystem() as system:
        hanging = system.spawn("h", lambda: Hanging([]), stop_timeout=0.01)
        failing = system.spawn("f", lambda: Failing([]), policy=NeverRestart())
        hanging.stop()
        failing.stop()
        assert not (await hanging.wait_stopped()).failed
        assert (await failing.wait_stopped()).reason.endswith("in the hook")
