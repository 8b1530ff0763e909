"""Counters of a worker over its incarnations."""

from gateway.routing.counters import Counters
from protocol.events import Gauges


def test_reports_of_one_incarnation_replace_each_other() -> None:
    counters = Counters()
    assert counters.total("steps") == 0
    for steps in (3, 5, 5, 4):
        counters.add(0, Gauges(steps=steps))
    assert counters.total("steps") == 5, "a repeated or stale report adds nothing"
    assert counters.total("steps_failed") == 0


def test_incarnations_add_up() -> None:
    counters = Counters()
    counters.add(1, Gauges(steps=5, steps_failed=1))
    counters.add(2, Gauges())
    assert counters.total("steps") == 5
    counters.add(2, Gauges(steps=2))
    counters.add(1, Gauges(steps=100))
    assert (counters.total("steps"), counters.total("steps_failed")) == (7, 1)
    counters.add(4, Gauges(steps=1))
    assert counters.total("steps") == 8


def test_what_was_seen_never_falls() -> None:
    counters = Counters()
    counters.add(0, Gauges(steps=3, decode_tokens=9))
    assert counters.total("decode_tokens") == 9
    counters.add(0, Gauges(steps=3, decode_tokens=7))
    assert counters.total("decode_tokens") == 9
    counters.add(0, Gauges(steps=4, decode_tokens=10))
    assert counters.total("decode_tokens") == 10
