"""The content of tiers: that of all their workers, in the order of use, and no more than they have room for."""

from gateway.routing.prefixes.shared_tiers import KEPT_SHARE, MAX_PREFIXES, MAX_SHARING, MAX_TIERS, SharedTiers
from protocol.bounds import MAX_COUNT
from protocol.events import SharedTier

HERE = SharedTier("here", 1600, 64)
THERE = SharedTier("there", 1600, 64)
MOST = int(KEPT_SHARE * 1600)


def tiers() -> SharedTiers:
    made = SharedTiers()
    made.join("a", HERE)
    made.join("b", HERE)
    made.join("c", THERE)
    made.join("d", SharedTier())
    return made


def test_what_one_worker_has_computed_is_there_for_all_of_its_machine() -> None:
    known = tiers()
    known.saved("a", (1, 2, 3), 300)
    assert [known.matched(worker, (1, 2, 4)) for worker in "abcd"] == [2, 2, 0, 0]
    assert known.matches((1, 2, 3, 4)) == {"here": 3}
    assert known.workers("here") == ["a", "b"]


def test_a_worker_without_a_tier_saves_nothing() -> None:
    known = tiers()
    known.saved("d", (1, 2, 3), 300)
    assert known.matches((1, 2, 3)) == {}
    assert known.whole_blocks("d", 300) == 0


def test_only_whole_blocks_count() -> None:
    known = tiers()
    known.saved("a", (1,), 63)
    assert known.matched("a", (1,)) == 0
    known.saved("a", (1,), 64)
    assert known.matched("a", (1,)) == 1
    assert [known.whole_blocks("a", rows) for rows in (63.9, 64.0, 130.0)] == [0, 64, 128]


def test_more_than_it_has_room_for_is_forgotten_the_longest_unused_first() -> None:
    known = tiers()
    known.saved("a", (1,), MOST - 200)
    known.saved("b", (2,), 100)
    known.saved("a", (3,), 100)
    assert [known.matched("a", (digest,)) for digest in (1, 2, 3)] == [1, 1, 1], "it is filled to the bound"
    known.saved("b", (1,), MOST - 200)  # used again
    known.saved("a", (4,), 64)
    assert [known.matched("a", (digest,)) for digest in (1, 2, 3, 4)] == [1, 0, 1, 1]


def test_the_next_turn_takes_the_place_of_the_last_one() -> None:
    known = tiers()
    for turn in range(1, 30):
        known.saved("a", tuple(range(turn)), 40 * turn)
    assert known.matched("b", tuple(range(40))) == 29
    known.saved("a", (100,), MOST - 40 * 29)
    assert known.matched("b", tuple(range(40))) == 29


def test_a_shared_beginning_counts_once() -> None:
    known = tiers()
    for chat in range(100, 108):
        known.saved("a", (1, 2, 3, 4, 5, 6, chat), 700)
    assert all(known.matched("a", (1, 2, 3, 4, 5, 6, chat)) == 7 for chat in range(100, 108))
    assert known.matched("a", (1, 2, 3)) == 3


def test_a_prefix_of_a_longer_one_is_there_already() -> None:
    known = tiers()
    known.saved("a", (1, 2, 3), MOST)
    known.saved("a", (1, 2), MOST)
    assert known.matched("a", (1, 2, 3)) == 3


def test_one_that_is_larger_than_the_tier_is_not_held() -> None:
    known = tiers()
    known.saved("a", (1, 2, 3), 1601)
    assert known.matches((1, 2, 3)) == {}


def test_a_tier_without_end_has_so_many_prefixes_and_no_more() -> None:
    known = SharedTiers()
    known.join("a", SharedTier("here", MAX_COUNT, 64))
    for digest in range(MAX_PREFIXES):
        known.saved("a", (digest,), 64)
    assert known.matched("a", (0,)) == 1
    known.saved("a", (MAX_PREFIXES,), 64)
    assert [known.matched("a", (digest,)) for digest in (0, 1, MAX_PREFIXES)] == [0, 1, 1]


def test_a_tier_is_forgotten_with_its_last_worker() -> None:
    known = tiers()
    known.saved("a", (1,), 100)
    known.leave("a")
    known.leave("a")
    assert known.matched("b", (1,)) == 1
    known.leave("b")
    assert known.matches((1,)) == {}
    known.join("a", HERE)
    assert known.matched("a", (1,)) == 0


def test_a_worker_that_comes_back_may_have_another_tier() -> None:
    known = tiers()
    known.saved("a", (1,), 100)
    known.join("a", HERE)
    assert known.matched("a", (1,)) == 1
    known.join("a", THERE)
    assert (known.matched("a", (1,)), known.matched("b", (1,))) == (0, 1)
    known.join("c", SharedTier())
    known.join("a", SharedTier())
    known.join("b", SharedTier())
    assert not known


def test_few_tiers_and_workers_are_looked_at() -> None:
    known = SharedTiers()
    for tier in range(MAX_TIERS + 2):
        for worker in range(MAX_SHARING + 2):
            known.join(f"{tier} {worker}", SharedTier(str(tier), 1600, 64))
        known.saved(f"{tier} 0", (1, 2, tier + 10), 100)
    assert len(known.matches((1, 2, 3))) == MAX_TIERS
    assert len(known.workers("0")) == MAX_SHARING
