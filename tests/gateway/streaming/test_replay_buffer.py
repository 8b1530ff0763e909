"""Events that a stream keeps, and the bound on them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.streaming.replay_buffer import EventLog, EventsGone, EventsUnknown


def event(number: int) -> bytes:
    return b"id: x-%d\ndata: %s\n\n" % (number, b"." * number)


def test_what_was_sent_is_sent_again() -> None:
    log = EventLog(1000)
    log.append([event(1)])
    log.append([])
    log.append([event(2), event(3)])
    assert log.last == 3
    assert log.after(0) == event(1) + event(2) + event(3)
    assert log.after(2) == event(3)
    assert log.after(3) == b""


@pytest.mark.parametrize("number", [-1, 4])
def test_an_event_that_never_was(number: int) -> None:
    log = EventLog(1000)
    log.append([event(1), event(2), event(3)])
    with pytest.raises(EventsUnknown):
        log.after(number)


def test_the_bound_is_in_bytes_and_the_oldest_go_first() -> None:
    full = len(event(1) + event(2))
    exact, tight = EventLog(full), EventLog(full - 1)
    for log in (exact, tight):
        log.append([event(1)])
        log.append([event(2)])
    assert exact.after(0) == event(1) + event(2)
    assert exact.size == full
    with pytest.raises(EventsGone):
        tight.after(0)
    assert tight.after(1) == event(2)
    assert tight.size == len(event(2))


def test_a_log_may_keep_nothing_and_still_counts() -> None:
    log = EventLog(0)
    log.append([event(1)])
    assert (log.last, log.size, log.after(1)) == (1, 0, b"")
    with pytest.raises(EventsGone):
        log.after(0)


@given(st.lists(st.lists(st.integers(0, 40), max_size=4), max_size=12), st.integers(0, 200))
def test_it_keeps_the_longest_end_that_fits(chunks: list[list[int]], bound: int) -> None:
    log = EventLog(bound)
    all_events: list[bytes] = []
    for chunk in chunks:
        events = [b"%s\n\n" % (b"e" * size) for size in chunk if size]
        all_events += events
        log.append(events)
        assert log.size <= bound
    for number in range(len(all_events) + 1):
        tail = b"".join(all_events[number:])
        if len(tail) <= bound:
            assert log.after(number) == tail
        else:
            with pytest.raises(EventsGone):
                log.after(number)
