"""The circuit of one worker, with times alone."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.circuit_breaker import FIRST_COOLDOWN_S, MAX_COOLDOWN_S, MAX_COUNTED, TRIP_AFTER, Breaker, Circuit


def tripped(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(TRIP_AFTER):
        breaker.failed(at)
    return breaker


def test_it_opens_at_the_bound_and_not_before() -> None:
    breaker = Breaker()
    for _ in range(TRIP_AFTER - 1):
        breaker.failed(10.0)
        assert breaker.state(10.0) is Circuit.CLOSED
        assert breaker.allows(10.0, live=99)
    breaker.failed(10.0)
    assert breaker.state(10.0) is Circuit.OPEN
    assert not breaker.allows(10.0, live=0)


def test_a_good_end_starts_the_count_again() -> None:
    breaker = Breaker()
    for _ in range(3 * TRIP_AFTER):
        for _ in range(TRIP_AFTER - 1):
            breaker.failed(0.0)
        breaker.succeeded()
        assert breaker.state(0.0) is Circuit.CLOSED


def test_after_the_cooldown_one_request_at_a_time_is_let_through() -> None:
    breaker = tripped()
    assert breaker.state(FIRST_COOLDOWN_S - 0.001) is Circuit.OPEN
    assert breaker.state(FIRST_COOLDOWN_S) is Circuit.HALF_OPEN
    assert breaker.allows(FIRST_COOLDOWN_S, live=0)
    assert not breaker.allows(FIRST_COOLDOWN_S, live=1)
    breaker.succeeded()
    assert breaker.allows(FIRST_COOLDOWN_S, live=1)


def test_each_failed_probe_doubles_the_cooldown_up_to_its_bound() -> None:
    breaker, now, cooldowns = tripped(), FIRST_COOLDOWN_S, []
    for _ in range(10):
        breaker.failed(now)
        cooldown = FIRST_COOLDOWN_S
        while breaker.state(now + cooldown) is Circuit.OPEN:
            cooldown *= 2
            cooldown = min(cooldown, MAX_COOLDOWN_S) if cooldown < 2 * MAX_COOLDOWN_S else cooldown
        cooldowns.append(cooldown)
        now += cooldown
    assert cooldowns == [2, 4, 8, 16, 32, 60, 60, 60, 60, 60]


def test_what_fails_while_it_is_open_does_not_lengthen_the_pause() -> None:
    breaker = tripped()
    breaker.failed(FIRST_COOLDOWN_S / 2)
    assert breaker.state(FIRST_COOLDOWN_S) is Circuit.HALF_OPEN


def test_the_failures_of_one_step_count_once() -> None:
    breaker = Breaker()
    for step in range(TRIP_AFTER - 1):
        for _ in range(64):
            breaker.failed(0.0, (1, step))
    assert breaker.state(0.0) is Circuit.CLOSED
    breaker.failed(0.0, (2, step))
    assert breaker.state(0.0) is Circuit.OPEN


def test_what_was_put_down_to_a_request_counts_no_more() -> None:
    breaker = Breaker()
    for step in range(TRIP_AFTER):
        breaker.failed(0.0, step)
    breaker.exempt(2)
    assert breaker.state(0.0) is Circuit.CLOSED
    breaker.exempt(2)
    breaker.exempt("unheard of")
    breaker.failed(0.0, TRIP_AFTER)
    assert breaker.state(0.0) is Circuit.OPEN, "the others count on"


def test_it_remembers_so_many_failures_and_not_more() -> None:
    breaker = Breaker()
    for step in range(MAX_COUNTED + 1):
        breaker.failed(0.0, step)
    for step in range(MAX_COUNTED - TRIP_AFTER + 1):
        breaker.exempt(step)
    assert breaker.state(0.0) is Circuit.OPEN, "the first one was forgotten before it was exempted"
    breaker.exempt(MAX_COUNTED)
    assert breaker.state(0.0) is Circuit.CLOSED


def test_it_remembers_the_first_of_as_many_failures_as_it_may() -> None:
    breaker = Breaker()
    for step in range(MAX_COUNTED):
        breaker.failed(0.0, step)
    for step in range(TRIP_AFTER, MAX_COUNTED):
        breaker.exempt(step)
    assert breaker.state(0.0) is Circuit.OPEN


@given(story=st.lists(st.tuples(st.booleans(), st.floats(0, 20)), max_size=60))
def test_any_story_opens_only_after_failures_and_never_for_long(story: list[tuple[bool, float]]) -> None:
    breaker, now, in_a_row = Breaker(), 0.0, 0
    for good, pause in story:
        now += pause
        in_a_row = 0 if good else in_a_row + 1
        breaker.succeeded() if good else breaker.failed(now)
        assert (breaker.state(now) is Circuit.CLOSED) == (in_a_row < TRIP_AFTER)
        assert breaker.state(now + MAX_COOLDOWN_S) is not Circuit.OPEN
