"""Bounds on the number of pending peers and on their connection rate: with times that are passed in."""

import pytest

from actors.join.pending_peers import MAX_SOURCES, PendingLimits, PendingPeers, source_of

PATIENT = PendingLimits(attempts_per_s=1.0, attempts_at_once=1e6, pending=3, pending_each=2)


def test_one_source_leaves_places_to_others() -> None:
    peers = PendingPeers(PATIENT)
    assert [peers.admit("a", 0.0) for _ in range(3)] == [True, True, False]
    assert [peers.admit("b", 0.0) for _ in range(2)] == [True, False]
    peers.release("a")
    assert [peers.admit("b", 0.0), peers.admit("a", 0.0)] == [True, False]


def test_one_source_comes_only_so_often() -> None:
    peers = PendingPeers(PendingLimits(attempts_per_s=0.5, attempts_at_once=2.0))

    def come(source: str, now: float) -> bool:
        admitted = peers.admit(source, now)
        if admitted:
            peers.release(source)
        return admitted

    assert [come("a", 0.0) for _ in range(3)] == [True, True, False]
    assert come("b", 0.0)
    assert [come("a", 1.9), come("a", 2.0), come("a", 2.0)] == [False, True, False]


def test_the_source_that_connected_longest_ago_is_forgotten() -> None:
    peers = PendingPeers(PendingLimits(attempts_per_s=0.001, attempts_at_once=1.0, pending=10 * MAX_SOURCES))
    assert [peers.admit("a", 0.0), peers.admit("a", 0.0)] == [True, False]
    for number in range(MAX_SOURCES - 1):
        peers.admit(str(number), 0.0)
    assert not peers.admit("a", 0.0)
    for number in range(MAX_SOURCES):
        peers.admit(f"x{number}", 0.0)
    assert peers.admit("a", 0.0)


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::/64"),
        ("2001:db8:0:1::", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_source_is_what_one_machine_can_have(host: str, source: str) -> None:
    assert source_of(host) == source
