"""Replies of the fleet when the state of its workers allows it, without processes."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from actors.actor import ReplyTo
from actors.supervision.worker import WorkerChanged, WorkerState
from actors.system import ActorSystem
from gateway.fleet.fleet import Fleet
from gateway.fleet.launch import WorkerLaunch
from gateway.fleet.member import Member
from gateway.fleet.messages import AwaitSettled, FleetGaveUp, FleetMessage, Relieve
from gateway.routing.router import Router
from gateway.routing.worker_handle import Role
from gateway.settings import GatewaySettings
from tests.actors.inbox import Inbox
from tests.gateway.harness.fakes import FakeWorker

pytestmark = pytest.mark.anyio
R = TypeVar("R")
STOPPED = {"state": WorkerState.STOPPED, "running": False, "reason": "stopped"}
GIVEN_UP = {"state": WorkerState.GIVEN_UP, "running": False, "reason": "it failed"}


def command(endpoint: str, incarnation: int) -> Sequence[str]:
    return ["worker"]


class Fakes:
    """A fleet of workers without processes."""

    def __init__(self, *names: str) -> None:
        """Active workers of this machine."""
        self.router = Router(GatewaySettings())
        self.fleet = Fleet(self.router, Inbox().ref, [])
        self.workers: dict[str, FakeWorker] = {}
        for name in names:
            self.add(name)

    def add(self, name: str, role: Role = Role.ACTIVE, model: str = "tiny", **member: Any) -> None:
        self.workers[name] = worker = FakeWorker(name, model=model).join(self.router, role)
        launch = WorkerLaunch(name, model, command)
        self.fleet.members[name] = Member(worker, model, **{"launch": launch} | member)

    def change(self, name: str, **changes: Any) -> None:
        """Change the status of a worker, and notify the router and the fleet, as an actor would."""
        self.workers[name].change(**changes)
        self.fleet.handle(WorkerChanged(self.workers[name].status))

    def ask(self, message: Callable[[ReplyTo[R]], FleetMessage]) -> ReplyTo[R]:
        reply = ReplyTo[R]()
        self.fleet.handle(message(reply))
        return reply

    def relieve(self, worker: str, by: frozenset[str] | None = None) -> ReplyTo[bool]:
        return self.ask(lambda reply: Relieve(worker, by, reply))

    def settled(self) -> ReplyTo[str]:
        return self.ask(AwaitSettled)

    @property
    def active(self) -> list[str]:
        return [name for name in self.workers if self.router.pool[name].role is Role.ACTIVE]


async def value(reply: ReplyTo[R]) -> R:
    assert reply.done
    return await reply.wait(0)


class TestOnDemand:
    """Workers whose models are loaded by their first request."""

    async def test_they_are_not_waited_for_at_the_start(self) -> None:
        fakes = Fakes("a")
        fakes.add("later", model="second", launch=WorkerLaunch("later", "second", command, on_demand=True))
        fakes.change("later", state=WorkerState.STOPPED, running=False, incarnation=0)
        assert await value(fakes.settled()) == ""

    @pytest.mark.parametrize("on_demand", [False, True])
    async def test_a_fleet_gives_up_unless_a_model_may_be_loaded_again(self, on_demand: bool) -> None:
        fakes = Fakes("a")
        fakes.add("later", model="second", launch=WorkerLaunch("later", "second", command, on_demand=on_demand))
        async with ActorSystem() as system:
            watcher = Inbox()
            ref = system.spawn("fleet", fakes.fleet)
            ref.watch(watcher.ref, FleetGaveUp)
            fakes.change("a", **GIVEN_UP)
            fakes.change("later", **GIVEN_UP)
        assert any(isinstance(each, FleetGaveUp) for each in watcher.messages) is not on_demand


class TestRelieve:
    async def test_a_ready_standby_takes_the_place(self) -> None:
        fakes = Fakes("a")
        fakes.add("s", Role.STANDBY)
        assert await value(fakes.relieve("a"))
        assert fakes.active == ["s"]
        assert await value(fakes.relieve("a")), "it is a standby already"
        assert fakes.active == ["s"]

    async def test_a_standby_that_loads_is_waited_for(self) -> None:
        fakes = Fakes("a")
        fakes.add("s", Role.STANDBY)
        fakes.change("s", state=WorkerState.LOADING)
        reply = fakes.relieve("a")
        assert not reply.done
        fakes.change("s", state=WorkerState.READY)
        assert await value(reply)
        assert fakes.active == ["s"]

    async def test_a_standby_that_is_given_up_meanwhile_is_not(self) -> None:
        fakes = Fakes("a")
        fakes.add("s", Role.STANDBY)
        fakes.change("s", state=WorkerState.LOADING)
        reply = fakes.relieve("a")
        fakes.change("s", **GIVEN_UP)
        assert not await value(reply)
        assert fakes.active == ["a"]

    @pytest.mark.parametrize("state", [{}, STOPPED])
    async def test_there_is_no_standby(self, state: dict[str, Any]) -> None:
        fakes = Fakes("a")
        fakes.add("other", Role.STANDBY, model="second")
        fakes.add("extra0", Role.STANDBY, extra_grace_s=1.0)
        fakes.change("extra0", **STOPPED)
        fakes.change("a", **state)
        assert not await value(fakes.relieve("a"))
        assert fakes.active == ["a"]

    async def test_a_worker_that_does_not_run_may_change_places_with_one_that_does_not_either(self) -> None:
        """So that an extra worker that was given up need not stay."""
        fakes = Fakes("a")
        fakes.add("s", Role.STANDBY)
        fakes.change("s", **STOPPED)
        fakes.change("a", **GIVEN_UP)
        assert await value(fakes.relieve("a"))
        assert fakes.active == ["s"]

    async def test_only_the_named_workers_count(self) -> None:
        fakes = Fakes("a")
        fakes.add("s", Role.STANDBY)
        fakes.add("extra0", Role.STANDBY, extra_grace_s=1.0)
        fakes.change("extra0", **GIVEN_UP)
        assert not await value(fakes.relieve("a", frozenset({"extra0"})))
        fakes.change("a", **STOPPED)  # the router lets the ready standby take its place
        fakes.change("s", **STOPPED)
        assert fakes.active == ["s"]
        assert not await value(fakes.relieve("s", frozenset({"extra0"})))
        fakes.change("extra0", state=WorkerState.READY, running=True)
        assert fakes.active == ["extra0"]

    async def test_a_remote_worker_that_is_away_is_not_waited_for(self) -> None:
        fakes = Fakes("a")
        fakes.add("far", Role.STANDBY, launch=None)
        fakes.change("far", state=WorkerState.BACKOFF, running=True, pid=None)
        assert not await value(fakes.relieve("a"))
        fakes.change("far", state=WorkerState.LOADING, pid=7)
        reply = fakes.relieve("a")
        assert not reply.done
        fakes.change("far", state=WorkerState.READY)
        assert await value(reply)


class TestSettled:
    async def test_all_models_are_served(self) -> None:
        fakes = Fakes("a")
        fakes.add("s", Role.STANDBY)
        fakes.change("s", state=WorkerState.LOADING)
        reply = fakes.settled()
        assert not reply.done
        fakes.change("s", **GIVEN_UP)
        assert await value(reply) == ""

    async def test_workers_that_were_not_started_are_waited_for(self) -> None:
        fakes = Fakes("a")
        fakes.change("a", incarnation=0, **STOPPED)
        assert not fakes.settled().done

    async def test_a_model_is_not_served(self) -> None:
        fakes = Fakes("a", "c")
        fakes.add("b", model="second")
        fakes.change("b", **GIVEN_UP)
        fakes.change("c", **GIVEN_UP)
        assert await value(fakes.settled()) == "worker c: it failed; worker b: it failed"

    async def test_the_workers_were_stopped(self) -> None:
        fakes = Fakes("a")
        fakes.change("a", **STOPPED)
        assert await value(fakes.settled()) == "the workers were stopped"

    async def test_workers_of_other_machines_are_not_waited_for(self) -> None:
        fakes = Fakes("a")
        fakes.add("far", launch=None, model="second")
        fakes.change("far", state=WorkerState.BACKOFF, pid=None)
        assert await value(fakes.settled()) == ""
