"""Running sequences are counted by urgency from their placement until they leave their worker, in whatever way."""

from collections import Counter
from typing import Any

import pytest

from actors.process.exit_cause import Origin
from gateway.routing.placement.running_urgencies import RunningUrgencies
from protocol.errors import ErrorCode
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, number

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def counted(one: World) -> RunningUrgencies:
    running = one.router._placement._preemption._running
    assert running is not None, "there were two urgencies"
    return running


def check(one: World) -> None:
    live = [sequence for handle in one.router.pool for sequence in handle.live.values()]
    assert counted(one)._counted == set(live)
    model = counted(one)._models.get("tiny")
    levels = Counter(sequence.terms.urgency.level for sequence in live)
    assert (Counter() if model is None else model.levels) == levels


async def test_nothing_is_counted_while_all_are_equally_urgent() -> None:
    one = World()
    one.open()
    assert one.router._placement._preemption._running is None


async def test_what_runs_is_counted_until_it_leaves() -> None:
    one = World("a", "b", slots=2, scheduler_policy="priority")
    groups = [one.open(str(index), client="x", priority=index % 3) for index in range(6)]
    check(one)
    waiting = one.open("waits", client="y", priority=5)
    assert not waiting.worker
    assert counted(one).below(waiting.sequences[0]) == (False, False), "of another client"
    mine = one.open("mine", client="x", priority=-1)
    assert counted(one).below(mine.sequences[0]) == (False, True)
    check(one)
    one[groups[0].worker].finish(number(groups[0]))
    check(one)
    groups[1].cancel_nowait()
    check(one)
    worker = one[groups[2].worker]
    worker.fail(number(groups[2]), ErrorCode.STEP)
    check(one)
    worker.die(origin=Origin.OUTSIDE)
    check(one)
    for group in (*groups, waiting, mine):
        group.cancel_nowait()
    check(one)
    assert counted(one)._models == {}
