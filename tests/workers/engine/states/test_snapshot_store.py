"""The store of snapshots: whose prefixes it finds, what it evicts, and that it stays within its bounds."""

import random

import pytest

from workers.engine.states.sequence_digests import SequenceDigests
from workers.engine.states.snapshot_store import MAX_SNAPSHOTS, OVERHEAD_BYTES, SnapshotStore

TOKENS = tuple(range(100))
STATE = bytes(100)
ONE = len(STATE) + OVERHEAD_BYTES


def digests(tokens: tuple[int, ...] = TOKENS, tenant: str = "", ends: tuple[int, ...] | None = None) -> SequenceDigests:
    return SequenceDigests(tenant, tokens, ends)


def test_digests_are_those_of_tenant_and_tokens_however_they_are_asked_for() -> None:
    one, other = digests(), digests(TOKENS[:50])
    one.compute([10, 30, 50])
    assert [one.of(length) for length in (10, 30, 31, 50)] == [other.of(length) for length in (10, 30, 31, 50)]
    assert one.of(30) != digests((7, *TOKENS[1:])).of(30)
    assert one.of(30) != one.of(31)
    assert one.of(30) != digests(tenant="b").of(30)
    assert digests(tenant="b\0").of(1) != digests(tenant="b").of(1)
    assert digests((-1,)).of(1) != digests(((1 << 32) - 1,)).of(1), "rows of embeddings are negative"


def test_digests_follow_the_tokens_that_are_appended() -> None:
    tokens = list(TOKENS[:10])
    growing = SequenceDigests("", tokens, None)
    assert growing.of(10) == digests().of(10)
    tokens += TOKENS[10:20]
    assert growing.of(20) == digests().of(20)


def test_where_chunks_matter_a_prefix_ends_with_equal_chunks() -> None:
    assert digests(ends=(4, 8, 9)).of(8) == digests(ends=(4, 8, 12)).of(8)
    assert digests(ends=(4, 8)).of(8) != digests(ends=(6, 8)).of(8)
    assert digests(ends=(4, 8)).of(6) is None
    assert digests(ends=(4, 8)).of(8) != digests().of(8)


def test_the_longest_prefix_is_found_within_a_tenant() -> None:
    store = SnapshotStore(10 * ONE)
    for length in (10, 30, 20):
        assert store.add("", digests(), length, STATE) is not None
    assert store.add("", digests(), 20, STATE) is None, "it is held already"
    found = [store.nearest("", digests(), most) for most in (9, 10, 25, 99)]
    assert [each and each.length for each in found] == [None, 10, 20, 30]
    branch = store.nearest("", digests((*TOKENS[:25], 7, 7, 7, 7, 7)), 30)
    assert branch is not None
    assert branch.length == 20
    assert store.nearest("b", digests(tenant="b"), 99) is None
    assert store.nearest("b", digests(), 99) is None


def test_the_bound_holds_at_its_edge() -> None:
    store = SnapshotStore(2 * ONE)
    made = [store.add("", digests(), length, STATE) for length in (10, 20, 30)]
    assert (len(store), store.used_bytes, store.evictions) == (2, 2 * ONE, 1)
    assert [each and each.state for each in made] == [b"", STATE, STATE], "nobody holds the state that was dropped"
    short = SnapshotStore(2 * ONE - 1)
    for length in (10, 20):
        assert short.add("", digests(), length, STATE) is not None
    assert (len(short), short.used_bytes) == (1, ONE)
    assert SnapshotStore(ONE).fits(len(STATE))
    none = SnapshotStore(ONE - 1)
    assert not none.fits(len(STATE))
    assert none.add("", digests(), 10, STATE) is None
    counted = SnapshotStore(1 << 30, most=2)
    for length in (10, 20, 30):
        counted.add("", digests(), length, STATE)
    assert (len(counted), counted.evictions) == (2, 1)


@pytest.mark.parametrize(("max_bytes", "most", "field"), [(-1, 1, "max_bytes"), (0, 0, "most")])
def test_invalid_bounds_are_refused(max_bytes: int, most: int, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SnapshotStore(max_bytes, most=most)


def test_what_is_computed_again_soonest_is_evicted_first_until_it_is_older() -> None:
    store = SnapshotStore(3 * ONE)
    cheap = store.add("", digests(), 10, STATE)
    dear = store.add("", digests(), 90, STATE)
    assert cheap is not None
    assert dear is not None
    assert (cheap.worth, dear.worth) == (10, 80)
    lengths = []
    for start in range(1, 9):
        made = store.add("", digests(tuple(range(start, start + 50))), 30, STATE)
        assert made is not None
        lengths.append(
            [each and each.length for each in (store.nearest("", digests(), 10), store.nearest("", digests(), 99))]
        )
    assert lengths[0] == [10, 90]
    assert lengths[1] == [None, 90], "the cheapest first"
    assert lengths[-1] == [None, None], "a dear one that nobody asks for as well, at last"


def test_a_hit_renews_a_snapshot() -> None:
    kept, dropped = SnapshotStore(2 * ONE), SnapshotStore(2 * ONE)
    for store in (kept, dropped):
        first = store.add("", digests(), 30, STATE)
        assert first is not None
        for start in range(1, 9):
            store.add("", digests(tuple(range(start, start + 50))), 30, STATE)
            if store is kept:
                store.hit(first)
    assert kept.nearest("", digests(), 30) is not None
    assert kept.hits == 8
    assert dropped.nearest("", digests(), 30) is None


def test_discarded_snapshots_are_not_found_and_free_their_bytes() -> None:
    store = SnapshotStore(9 * ONE)
    one, other = store.add("", digests(), 30, STATE), store.add("b", digests(tenant="b"), 30, STATE)
    assert one is not None
    assert other is not None
    store.discard(one)
    store.discard(one)
    assert store.nearest("", digests(), 30) is None
    assert store.used_bytes == ONE
    store.hit(one)
    store.discard_where(lambda each: each.tenant == "b")
    assert (len(store), store.used_bytes, store.evictions) == (0, 0, 0)


def test_any_order_of_changes_keeps_the_account() -> None:
    randomness = random.Random(5)
    store = SnapshotStore(7 * ONE + 50, most=6)
    for _ in range(3000):
        start, tenant = randomness.randrange(4), randomness.choice(("", "b"))
        found = digests(tuple(range(start, start + 40)), tenant)
        match randomness.randrange(4):
            case 0:
                store.discard_where(lambda each: randomness.random() < 0.1)
            case 1:
                if (hit := store.nearest(tenant, found, randomness.randrange(40))) is not None:
                    assert hit.tenant == tenant
                    assert found.of(hit.length) == hit.digest
                    store.hit(hit)
            case _:
                store.add(tenant, found, randomness.randint(1, 40), bytes(randomness.randrange(120)))
        held = list(store._held.values())
        assert sum(len(each.state) for *_, each in store._queue if each not in held) == 0
        assert store.used_bytes == sum(each.size for each in held) <= store.max_bytes
        assert len(held) <= 6
        for owner in ("", "b"):
            assert store._lengths.get(owner, []) == sorted(each.length for each in held if each.tenant == owner)
    assert store.hits
    assert store.evictions
    assert len(store._queue) <= 2 * 6 + MAX_SNAPSHOTS
