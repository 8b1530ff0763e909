"""The order of a rolling restart: what happens to which worker, without processes."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import pytest
from msgspec.structs import replace

from actors.supervision.worker import WorkerState, WorkerStatus
from gateway.fleet.launch import WorkerLaunch
from gateway.fleet.member import Member
from gateway.fleet.operation import OperationFailed
from gateway.fleet.operations import replace_all
from gateway.fleet.rolling_restart import RollingRestart, release_extras
from gateway.fleet.steps import Steps
from gateway.routing.router import Router
from gateway.routing.worker_handle import Role
from gateway.settings import GatewaySettings
from tests.gateway.harness.fakes import FakeWorker

pytestmark = pytest.mark.anyio


def command(endpoint: str, incarnation: int) -> Sequence[str]:
    return ["worker"]


class RecordedSteps:
    """Steps that take effect at once. `done` names them, in their order."""

    def __init__(self, *active: str, standby: tuple[str, ...] = ()) -> None:
        self.router = Router(GatewaySettings())
        self.members: dict[str, Member] = {}
        self.done: list[str] = []
        self.broken: set[tuple[str, str]] = set()
        """Workers that do not become ready with a checkpoint."""
        self.relieves = self.has_memory = True
        for name in (*active, *standby):
            self.add(WorkerLaunch(name, "tiny", command, standby=name in standby))

    def add(self, launch: WorkerLaunch, extra_grace_s: float | None = None) -> Member:
        worker = FakeWorker(launch.name).join(self.router, Role.STANDBY if launch.standby else Role.ACTIVE)
        member = Member(worker, "tiny", launch, launch.command, "", extra_grace_s)
        self.members[launch.name] = member
        return member

    async def command(self, member: Member, name: str, checkpoint: str) -> Any:
        return command

    def use(self, member: Member, command: Any, checkpoint: str) -> None:
        self.members[member.name] = dataclasses.replace(self.members[member.name], checkpoint=checkpoint)

    async def renew(self, member: Member) -> WorkerStatus:
        checkpoint = self.members[member.name].checkpoint
        role = self.router.pool[member.name].role
        self.done.append(f"renew {member.name} ({role}) with {checkpoint or 'the old one'}")
        if (member.name, checkpoint) in self.broken:
            return replace(member.status, state=WorkerState.GIVEN_UP, running=False, reason="it is broken")
        return member.status

    async def ready(self, member: Member) -> WorkerStatus:
        if (member.name, "") in self.broken:
            return replace(member.status, state=WorkerState.GIVEN_UP, running=False, reason="it is broken")
        return member.status

    async def restart(self, member: Member) -> None:
        self.done.append(f"restart {member.name}")

    async def dismiss(self, member: Member) -> None:
        self.done.append(f"dismiss {member.name}")

    async def relieve(self, member: Member, by: frozenset[str] | None) -> bool:
        pool = self.router.pool
        others = [name for name in self.members if pool[name].role is Role.STANDBY and (by is None or name in by)]
        if not others or not self.relieves:
            return False
        self.done.append(f"{others[0]} for {member.name}")
        pool.swap(pool[member.name], pool[others[0]])
        return True

    async def reserve(self, model: str) -> bool:
        return self.has_memory

    async def add_extra(self, launch: WorkerLaunch, checkpoint: str) -> Member:
        self.done.append(f"start {launch.name}")
        return self.add(launch, 0.0)

    async def remove(self, member: Member) -> None:
        self.done.append(f"remove {member.name}")
        del self.members[member.name]

    def report(self, line: str) -> None:
        self.done.append(line)

    async def run(self, checkpoint: str = "") -> None:
        await RollingRestart(cast(Steps, self), self.router.pool, "tiny").run(checkpoint)


def steps_only(steps: RecordedSteps) -> list[str]:
    return [line for line in steps.done if line.split()[0] in ("renew", "start", "remove") or " for w" in line]


async def test_each_worker_is_relieved_before_it_is_started_anew() -> None:
    steps = RecordedSteps("w0", "w1")
    await steps.run("/new")
    assert steps_only(steps) == [
        "start extra0",
        "extra0 for w0",
        "renew w0 (standby) with /new",
        "w0 for w1",
        "renew w1 (standby) with /new",
    ]
    assert {name: member.checkpoint for name, member in steps.members.items()} == {
        "w0": "/new",
        "w1": "/new",
        "extra0": "",
    }


async def test_a_standby_is_started_anew_first_and_needs_no_extra_worker() -> None:
    steps = RecordedSteps("w0", standby=("w1",))
    await steps.run()
    assert steps_only(steps) == [
        "renew w1 (standby) with the old one",
        "w1 for w0",
        "renew w0 (standby) with the old one",
    ]


async def test_no_active_worker_is_touched_without_one_in_its_place() -> None:
    steps = RecordedSteps("w0", "w1")
    steps.relieves = False
    with pytest.raises(OperationFailed, match="no new worker is left"):
        await steps.run()
    assert steps_only(steps) == ["start extra0"]
    steps = RecordedSteps("w0")
    steps.broken = {("extra0", "")}
    with pytest.raises(OperationFailed, match="extra0 did not become ready: it is broken"):
        await steps.run()
    assert steps_only(steps) == ["start extra0"]


async def test_without_memory_for_another_worker_each_starts_in_its_place() -> None:
    steps = RecordedSteps("w0", "w1")
    steps.has_memory = False
    await steps.run("/new")
    assert steps_only(steps) == ["renew w0 (active) with /new", "renew w1 (active) with /new"]
    assert "memory_budget has no room for another worker of tiny: each starts in its place" in steps.done


async def test_a_checkpoint_that_fails_in_its_place_leaves_the_others_alone() -> None:
    steps = RecordedSteps("w0", "w1")
    steps.has_memory, steps.broken = False, {("w0", "/new")}
    with pytest.raises(OperationFailed, match="w0 did not become ready: it is broken"):
        await steps.run("/new")
    assert steps_only(steps) == ["renew w0 (active) with /new", "renew w0 (active) with the old one"]


async def test_a_worker_that_cannot_serve_the_checkpoint_gets_its_old_one_again() -> None:
    steps = RecordedSteps("w0")
    steps.broken = {("w0", "/new")}
    with pytest.raises(OperationFailed, match="w0 did not become ready: it is broken"):
        await steps.run("/new")
    assert steps_only(steps)[-2:] == ["renew w0 (standby) with /new", "renew w0 (standby) with the old one"]


async def test_a_model_without_workers_of_this_machine_has_nothing_to_replace() -> None:
    steps = RecordedSteps()
    await steps.run()
    assert steps.done == []


async def test_an_extra_worker_leaves_unless_it_serves_and_nobody_can_take_its_place() -> None:
    steps = RecordedSteps("w0")
    await steps.run()
    steps.done.clear()
    await release_extras(cast(Steps, steps), steps.router.pool)
    assert steps.done == ["w0 for extra0", "remove extra0", "extra0 has left"]
    steps = RecordedSteps()
    steps.add(WorkerLaunch("extra0", "tiny", command), 0.0)
    steps.add(WorkerLaunch("extra1", "tiny", command, standby=True), 0.0)
    steps.relieves = False
    await release_extras(cast(Steps, steps), steps.router.pool)
    assert steps.done == [
        "extra0 stays, for no other worker can take its place",
        "remove extra1",
        "extra1 has left",
    ]


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ("", ["restart far"]),
        ("/new", ["dismiss far", "far has left: it may join again with the same checkpoint"]),
    ],
)
async def test_workers_of_other_machines_are_restarted_or_leave_after_those_of_this_one(
    checkpoint: str, expected: list[str]
) -> None:
    steps = RecordedSteps("w0")
    for name, model in (("far", "tiny"), ("away", "second")):
        worker = FakeWorker(name, model=model).join(steps.router)
        steps.members[name] = Member(worker, model)
    await replace_all(cast(Steps, steps), steps.router.pool, ["tiny"], checkpoint)
    assert steps.done[-len(expected) :] == expected
    assert [line for line in steps.done if "away" in line] == []
    assert any(line.startswith("renew w0") for line in steps.done[: -len(expected)])
