"""The index of prefixes: bounded, exact under evictions and deaths."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.routing.prefixes.index import PrefixIndex

WORKERS = st.sampled_from(["a", "b", "c"])
HOLDERS = st.integers(0, 3)
PATHS = st.lists(st.integers(0, 1), max_size=6)


def chain(path: list[int]) -> tuple[int, ...]:
    """The digests of a prompt: each stands for all of the path up to it."""
    return tuple(hash(tuple(path[: end + 1])) for end in range(len(path)))


class IndexMachine(RuleBasedStateMachine):
    """Compares an index without a bound that is reached with what is obviously held."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.held: dict[str, dict[int, tuple[int, ...]]] = {}

    @rule(worker=WORKERS, holder=HOLDERS, path=PATHS)
    def hold(self, worker: str, holder: int, path: list[int]) -> None:
        self.index.hold(worker, holder, chain(path))
        self.held.setdefault(worker, {})[holder] = chain(path)

    @rule(worker=WORKERS, holder=HOLDERS)
    def drop(self, worker: str, holder: int) -> None:
        self.index.drop(worker, holder)
        self.held.get(worker, {}).pop(holder, None)

    @rule(worker=WORKERS)
    def die(self, worker: str) -> None:
        self.index.clear(worker)
        self.held.pop(worker, None)

    @rule(path=PATHS)
    def ask(self, path: list[int]) -> None:
        expected = {}
        for worker, held in self.held.items():
            digests = {digest for each in held.values() for digest in each}
            count = next((n for n, digest in enumerate(chain(path)) if digest not in digests), len(path))
            if count:
                expected[worker] = count
        assert self.index.matches(chain(path)) == expected

    @invariant()
    def counts(self) -> None:
        for worker in ("a", "b", "c"):
            assert self.index.digests(worker) == sum(map(len, self.held.get(worker, {}).values()))

    @invariant()
    def nothing_is_kept_of_nothing(self) -> None:
        if not any(map(self.index.digests, ("a", "b", "c"))):
            assert not self.index._workers
            assert not self.index._held
            assert not self.index._total


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(("count", "kept"), [(3, [0, 1, 2]), (4, [1, 2, 3])])
def test_a_worker_with_too_many_forgets_what_it_has_held_for_longest(count: int, kept: list[int]) -> None:
    index = PrefixIndex(bound=6)
    for holder in range(count):
        index.hold("a", holder, (10 * holder, 10 * holder + 1))
    assert [n for n in range(count) if index.matches((10 * n,))] == kept
    assert index.digests("a") == 6


def test_the_digests_of_a_holder_are_found_until_it_is_dropped() -> None:
    index = PrefixIndex()
    index.hold("a", 1, (1, 2))
    assert [index.held(*of) for of in (("a", 1), ("a", 2), ("b", 1))] == [(1, 2), (), ()]
    index.drop("a", 1)
    assert index.held("a", 1) == ()


def test_what_is_held_again_is_the_newest() -> None:
    index = PrefixIndex(bound=6)
    for holder in (0, 1, 2, 0, 3):
        index.hold("a", holder, (10 * holder, 10 * holder + 1))
    assert [n for n in range(4) if index.matches((10 * n,))] == [0, 2, 3]


def test_a_worker_that_reports_much_takes_nothing_from_the_others() -> None:
    index = PrefixIndex(bound=100)
    index.hold("small", 0, range(10))
    for holder in range(1000):
        index.hold("large", holder, range(1000 + 10 * holder, 1010 + 10 * holder))
    assert index.digests("small") == 10
    assert index.digests("large") == 90


def test_more_than_the_bound_at_once_is_not_held() -> None:
    index = PrefixIndex(bound=5)
    index.hold("a", 0, range(6))
    assert index.matches(tuple(range(6))) == {}


def test_some_workers_are_enough_those_with_the_longest_prefix_first() -> None:
    index = PrefixIndex()
    for n in range(10):
        index.hold(f"w{n}", 0, range(n + 1))
    assert list(index.matches(range(20), most=3).items()) == [("w9", 10), ("w8", 9), ("w7", 8)]
    assert [index.matched(f"w{n}", range(20)) for n in range(11)] == [*range(1, 11), 0]


def test_matches_are_the_longest_of_each_worker() -> None:
    index = PrefixIndex()
    index.hold("a", 0, (1, 2, 3, 4))
    index.hold("b", 0, (1, 2))
    index.hold("c", 0, (1, 9))
    assert index.matches((1, 2, 3, 5)) == {"a": 3, "b": 2, "c": 1}
    assert index.matches(()) == {}
    assert index.matches((7,)) == {}
    assert Counter(index.matches((1,)).values()) == {1: 3}
