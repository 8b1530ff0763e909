"""Requests of a more urgent class do not wait for those that they preempt on a worker."""

from collections.abc import Sequence
from typing import Any

import pytest

from actors.process.exit_cause import Origin
from gateway.routing.model_catalog import CatalogEntry
from gateway.routing.placement import preemption
from gateway.routing.request_group import RequestGroup
from protocol.commands import Command, Submit
from protocol.errors import ErrorCode, ProtocolError
from protocol.scheduling import PriorityClass, may_preempt
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, failure, number

pytestmark = pytest.mark.anyio

CLASSES: dict[str, PriorityClass] = {"hasty": "high", "patient": "low"}


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def world(*names: str, slots: int = 2, **settings: Any) -> World:
    made = World(*names, slots=slots, **settings)
    made.router.admission._class_of = lambda client: CLASSES.get(client, "normal")
    return made


def sent(one: World, worker: str = "a") -> list[str]:
    return [submit.request for submit in one[worker].submits]


def fill(one: World, count: int, client: str = "patient") -> list[RequestGroup]:
    return [one.open(f"{client}{index}", client=client) for index in range(count)]


async def test_the_worker_receives_class_and_priority() -> None:
    one = world(scheduler_policy="priority")
    one.open(client="hasty", priority=-7)
    one.open()
    assert [(each.priority_class, each.priority) for each in one["a"].submits] == [("high", -7), ("normal", 0)]


async def test_an_urgent_request_is_sent_to_a_worker_that_is_full_of_others() -> None:
    one = world()
    fill(one, 5)
    assert sent(one) == ["patient0", "patient1", "patient2"], "two slots, and one that waits for them"
    one.open("urgent", client="hasty")
    assert sent(one)[3:] == ["urgent"]
    assert one.router.waiting() == {"tiny": 2}


async def test_no_more_are_sent_than_get_a_slot() -> None:
    one = world()
    fill(one, 3)
    groups = fill(one, 3, "hasty")
    assert sent(one)[3:] == ["hasty0", "hasty1"]
    one["a"].finish(number(groups[0]))
    assert sent(one)[5:] == ["hasty2"], "before those that wait for longer"


async def test_a_request_is_not_sent_beside_equal_or_more_urgent_ones() -> None:
    one = world()
    fill(one, 3)
    fill(one, 1, "")
    fill(one, 2, "hasty")
    assert sent(one)[3:] == ["0", "hasty0", "hasty1"]
    more = fill(one, 1, "other")
    assert not more[0].worker
    assert one.router.waiting() == {"tiny": 1}


@pytest.mark.parametrize("n", [2, 3])
async def test_of_a_request_as_many_sequences_are_sent_as_get_a_slot(n: int) -> None:
    one = world()
    fill(one, 3)
    one.open("urgent", client="hasty", n=n)
    assert sent(one)[3:] == ["urgent"] * 2
    assert len(one["a"].sent) == (4 if n == 2 else 5), "those that all get one go in one message"


@pytest.mark.parametrize(("client", "waits"), [("", False), ("other", True)])
async def test_a_priority_counts_among_the_requests_of_one_client(client: str, waits: bool) -> None:
    one = world(scheduler_policy="priority")
    for index in range(3):
        one.open(f"late{index}", priority=5)
    early = one.open("early", client=client, priority=-5)
    assert (early.worker == "") == waits


async def test_those_that_wait_are_sent_before_others_when_their_class_is_more_urgent() -> None:
    one = world()
    fill(one, 5)
    one["a"].full = True
    fill(one, 2, "hasty")
    assert one.router.waiting() == {"tiny": 4}
    one["a"].full = False
    one.router._placement.serve("tiny")
    assert sent(one)[3:] == ["hasty0", "hasty1"]


async def test_a_failed_request_of_the_first_client_does_not_hold_up_the_next_one() -> None:
    one = world()
    fill(one, 3)
    fill(one, 2, "hasty")
    waits = one.open("waits", client="hasty")
    waits.close()
    next_one = one.open("next", client="hasty")
    one["a"].finish(number(one_of(one, "hasty0")))
    assert next_one.worker == "a"


def one_of(one: World, request: str) -> RequestGroup:
    (found,) = [each for each in one.router._placement.live() if each.request.request_id == request]
    assert isinstance(found.request, RequestGroup)
    return found.request


async def test_the_most_urgent_are_the_first_that_ran_when_a_worker_dies() -> None:
    one = world(slots=2)
    patient = fill(one, 3)
    hasty = fill(one, 2, "hasty")
    one["a"].die(origin=Origin.WITHIN)
    ran = [group for group in (*patient, *hasty) if group.sequences[0].failures]
    assert ran == [*patient[:2], *hasty], "two slots, and as many again that one step may start"


async def test_the_bound_of_a_worker_holds() -> None:
    one = world(max_streams_per_worker=3, max_choices=3)
    fill(one, 3)
    assert not one.open("urgent", client="hasty").worker


async def test_a_model_that_is_to_be_unloaded_gets_no_urgent_request() -> None:
    one = world()
    entry = CatalogEntry("tiny", loads=True)
    one.router.pool.catalog.add(entry)
    groups = fill(one, 3)
    entry.held = True
    urgent = one.open("urgent", client="hasty")
    one["a"].finish(number(groups[0]))
    assert one.router.waiting() == {"tiny": 1}
    entry.held = False
    one.router.model_changed("tiny")
    assert urgent.worker == "a"


async def test_an_urgent_request_that_cannot_be_sent_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    fill(one, 3)
    one["a"].full = True
    bad, good = fill(one, 2, "hasty")
    one["a"].full = False
    send = one["a"].send_nowait

    def failing(commands: Sequence[Command]) -> None:
        if any(isinstance(each, Submit) and each.request == "hasty0" for each in commands):
            raise ProtocolError("too large")
        send(commands)

    monkeypatch.setattr(one["a"], "send_nowait", failing)
    one.router._placement.serve("tiny")
    assert failure(bad) is ErrorCode.INTERNAL
    assert good.worker == "a"


async def test_workers_are_looked_at_once_for_all_clients_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    one.router.admission._class_of = lambda client: "low" if client == "patient" else "high"
    groups = fill(one, 3)
    fill(one, 2, "hasty")
    for index in range(20):
        one.open("waits", client=f"other{index}")
    looks = 0

    def counted(*args: Any, **fields: Any) -> bool:
        nonlocal looks
        looks += 1
        return may_preempt(*args, **fields)

    monkeypatch.setattr(preemption, "may_preempt", counted)
    one["a"].finish(number(groups[0]))
    assert one.router.waiting() == {"tiny": 20}
    assert looks == 4, "once for each sequence of the worker"


async def test_those_of_the_lowest_priority_may_have_run_when_a_worker_dies() -> None:
    one = world(slots=2, scheduler_policy="priority")
    late = [one.open(f"late{index}", priority=5) for index in range(3)]
    early = [one.open(f"early{index}", priority=-5) for index in range(2)]
    assert all(group.worker == "a" for group in early), "they preempt the others"
    one["a"].die(origin=Origin.WITHIN)
    ran = [group for group in (*late, *early) if group.sequences[0].failures]
    assert ran == [*late, *early]
