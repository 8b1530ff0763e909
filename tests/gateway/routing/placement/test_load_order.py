"""The order of the workers of a model, against a sort of all of them at each look."""

from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.placement.load_order import LoadOrder, Rank, rank
from gateway.routing.worker_handle import Role, WorkerHandle
from protocol.events import Phases


class StubHandle(WorkerHandle):
    """A handle whose state the test sets. It notifies the order of all that a handle does, and not of a close."""

    ready = False
    room = 3
    tries_suspect = False
    shared = False
    status: Any = SimpleNamespace(hello=None)

    def __init__(self, name: str) -> None:
        self.name, self.role, self.slots, self.others = name, Role.ACTIVE, 2, 0
        self.phases: Phases = "both"
        self.live: Any = {}
        self.prefixes = (0, 0)
        self.away = False

    def admits(self, now: float) -> bool:
        return self.role is Role.ACTIVE and self.ready

    def doubtful(self, now: float) -> bool:
        return self.away


CHANGES = (
    "add",
    "remove",
    "start",
    "close",
    "place",
    "end",
    "others",
    "swap",
    "suspect",
    "doubt",
    "hold",
    "turn",
    "role",
)
ROLES: list[Phases] = ["both", "prefill", "decode"]


@given(st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 3)), max_size=40))
def test_any_story_keeps_the_order_that_a_sort_gives(story: list[tuple[str, int]]) -> None:
    order, known = LoadOrder(), [StubHandle(str(number)) for number in range(4)]
    there: list[StubHandle] = []
    for change, number in story:
        handle = known[number]
        if change == "add" and handle not in there:
            there.append(handle)
            order.add(handle)
        if handle not in there:
            continue
        match change:
            case "remove":
                there.remove(handle)
                order.remove(handle)
                continue
            case "start":
                handle.ready = True
            case "place":
                handle.live[len(handle.live)] = None
            case "end" if handle.live:
                handle.live.popitem()
            case "others":
                handle.others = (handle.others + 1) % 3
            case "swap":
                handle.role = Role.STANDBY if handle.role is Role.ACTIVE else Role.ACTIVE
            case "suspect":
                handle.tries_suspect = not handle.tries_suspect
            case "doubt":
                handle.away = not handle.away
            case "hold":
                handle.prefixes = ((handle.prefixes[0] + 1) % 3, handle.prefixes[1])
            case "turn":
                handle.prefixes = (handle.prefixes[0], (handle.prefixes[1] + 1) % 3)
            case "role":
                handle.phases = ROLES[(ROLES.index(handle.phases) + 1) % len(ROLES)]
            case "close":
                handle.ready = False
        if change not in ("close", "doubt"):  # which are found when somebody looks
            order.update(handle)
        able = [each for each in there if each.admits(0.0)]
        able.sort(key=lambda each: (each.away, rank(each), each.prefills, each.load, each.prefixes))
        assert list(order.candidates(0.0)) == able
        with_room = [each for each in able if rank(each) is not Rank.NO_ROOM]
        assert list(order.candidates(0.0, worst=Rank.FULL)) == with_room
        for phases in ROLES:
            free = [each for each in able if each.phases == phases and rank(each) is Rank.FREE]
            free.sort(key=lambda each: (each.load, each.prefixes))
            assert [each for each in order.free(phases) if each.ready] == free
        assert set(order.of_one_phase) >= {each for each in able if each.phases != "both"}
        assert all(each.phases != "both" for each in order.of_one_phase)
        assert order.has_ready() == any(each.ready for each in there)
        assert order.live == sum(len(each.live) for each in there)
        assert list(order) == there


def test_two_random_workers_of_the_best_rank_come_first_if_other_gateways_share_them() -> None:
    order, known = LoadOrder(Random(1)), [StubHandle(str(number)) for number in range(6)]
    for handle, others in zip(known, (1, 0, 1, 0, 1, 5), strict=True):
        handle.ready = handle.shared = True
        handle.others = others
        order.add(handle)
    *best, full = known
    pairs = set()
    for _ in range(200):
        candidates = list(order.candidates(0.0))
        first, second, *rest = candidates
        assert first.load <= second.load
        assert rest == [each for each in sorted(known, key=lambda each: each.load) if each not in (first, second)]
        pairs.add(frozenset([first, second]))
    assert len(pairs) == 10, "each pair of the five with a free slot"
    assert full not in frozenset[Any]().union(*pairs)
    best[0].ready = False
    assert set(order.candidates(0.0)) == set(known) - {best[0]}


def test_a_single_shared_worker_is_the_candidate() -> None:
    order, handle = LoadOrder(), StubHandle("0")
    handle.ready = handle.shared = True
    order.add(handle)
    assert list(order.candidates(0.0, worst=Rank.FULL)) == [handle]
