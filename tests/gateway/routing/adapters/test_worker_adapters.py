"""Commands that the gateway sends to workers: adapters that come and go while the workers do, and while they load."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from actors.supervision.worker import WorkerState
from gateway.routing.adapters.loads import CHECK_S, LOAD_S, AdapterRefused
from gateway.routing.adapters.registry import AdapterVersion
from protocol.commands import LoadAdapter, Submit, UnloadAdapter
from protocol.events import AdapterChanged
from tests.gateway.harness.fakes import FakeWorker
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World

pytestmark = pytest.mark.anyio

ONE, TWO = "1" * 32, "2" * 32


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def make_world(*names: str, places: int = 2) -> World:
    world = World(*names)
    for worker in world.workers.values():
        ready = worker.status.ready
        assert ready is not None
        worker.change(ready=replace(ready, adapter_places=places))
    return world


def changes(worker: FakeWorker) -> list[LoadAdapter | UnloadAdapter]:
    return [each for sent in worker.sent for each in sent if isinstance(each, LoadAdapter | UnloadAdapter)]


def answer(worker: FakeWorker, text: str = "") -> None:
    """Answer the last load."""
    asked = [each for each in changes(worker) if isinstance(each, LoadAdapter)][-1]
    worker.say(AdapterChanged(asked.query, text))


@asynccontextmanager
async def loading(world: World, name: str, digest: str, model: str = "tiny") -> AsyncIterator[list[Any]]:
    """A load that has begun; its end is in the list after the block."""
    ends: list[Any] = []

    async def load() -> None:
        try:
            ends.append(await world.router.adapters.load(name, model, digest, ("/copy", "/path")))
        except AdapterRefused as refused:
            ends.append(refused)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load)
        await anyio.wait_all_tasks_blocked()
        yield ends


async def loaded(world: World, name: str, digest: str) -> AdapterVersion:
    async with loading(world, name, digest) as ends:
        for worker in world.workers.values():
            answer(worker)
    (version,) = ends
    assert isinstance(version, AdapterVersion), version
    return version


async def test_a_version_that_comes_back_with_another_number_is_unloaded_first() -> None:
    world = make_world()
    await loaded(world, "one", ONE)
    two = await loaded(world, "two", TWO)
    assert two.number == 2
    world["a"].full = True  # no unload can be sent
    for name in ("one", "two"):
        assert world.router.adapters.unload(name)
    await anyio.sleep(2 * CHECK_S)
    assert not list(world.router.pool.runtime.wires())
    before = len(changes(world["a"]))
    async with loading(world, "two", TWO) as ends:
        world["a"].full = False
        await anyio.sleep(2 * CHECK_S)
        sent = changes(world["a"])[before:]
        assert [type(each) for each in sent] == [UnloadAdapter, UnloadAdapter, LoadAdapter]
        answer(world["a"])
    assert (ends[0].number, world.router.pool["a"].has_adapter(two.wire)) == (1, True)


async def test_an_answer_to_a_load_that_was_given_up_is_none_to_a_later_one() -> None:
    """The worker loads it under the number that it had before."""
    world = make_world()
    async with loading(world, "one", ONE):
        answer_late = [each for each in changes(world["a"]) if isinstance(each, LoadAdapter)]
        async with loading(world, "two", TWO) as ends:
            answer(world["a"])
        await anyio.sleep(LOAD_S)  # the first one takes too long
    assert ends[0].number == 2
    assert world.router.adapters.unload("two")
    await anyio.sleep(2 * CHECK_S)
    third = await loaded(world, "two", TWO)
    assert third.number == 1
    async with loading(world, "one", ONE) as again:
        world["a"].say(AdapterChanged(answer_late[0].query))
        sent = changes(world["a"])[-2:]
        assert [type(each) for each in sent] == [UnloadAdapter, LoadAdapter]
        answer(world["a"])
    assert again[0].number == 2


async def test_a_name_of_another_model_with_the_same_files_stays_that_of_its_model() -> None:
    world = make_world()
    FakeWorker("b", model="other").join(world.router)
    await loaded(world, "one", ONE)
    async with loading(world, "one", ONE, "other") as ends:
        pass
    assert "'tiny' has this adapter under the name 'one'" in str(ends[0])
    assert world.router.models.canonical("one") == "tiny"


async def test_a_worker_that_will_return_keeps_an_adapter_that_the_others_refuse() -> None:
    world = make_world("a", "b")
    version = await loaded(world, "one", ONE)
    group = world.open(model="one")
    assert group.adapter == "one"
    world["a"].die()
    world["b"].die()
    world["b"].come_back()
    answer(world["b"], "no such files")
    assert world.router.pool.runtime.version("one") == version, "the other one may load it"
    world["a"].come_back()
    answer(world["a"], "nor here")
    assert world.router.pool.runtime.version("one") is None
    assert group.failure is not None


async def test_many_rounds_leave_nothing_behind() -> None:
    world = make_world()
    for number in range(100):
        async with loading(world, f"one-{number}", f"{number:032x}") as ends:
            answer(world["a"], "" if number % 2 else "no such files")
        assert isinstance(ends[0], AdapterVersion if number % 2 else AdapterRefused)
        if number % 2:
            assert world.router.adapters.unload(f"one-{number}")
            await anyio.sleep(2 * CHECK_S)
    (state,) = world.router.adapters._workers.values()
    assert (state.loaded, state.asked, state.refused, state.unloading) == ({}, {}, {}, set())
    assert not list(world.router.pool.runtime.wires())
    loads = sum(isinstance(each, LoadAdapter) for each in changes(world["a"]))
    assert (loads, len(changes(world["a"]))) == (100, 150)


async def test_a_fixed_adapter_may_have_a_name_like_that_of_a_version() -> None:
    world = make_world()
    ready = world["a"].status.ready
    assert ready is not None
    world["a"].change(ready=replace(ready, adapters=(f"one@{ONE}",)))
    world.open(model=f"one@{ONE}")
    assert any(isinstance(each, Submit) for sent in world["a"].sent for each in sent)


async def test_a_load_ends_when_all_workers_are_gone() -> None:
    world = make_world("a", "b")
    async with loading(world, "one", ONE) as ends:
        for worker in world.workers.values():
            worker.change(state=WorkerState.DRAINING)
            worker.die()
    assert (str(ends[0]), ends[0].unavailable) == ("no worker of 'tiny' is left", True)
