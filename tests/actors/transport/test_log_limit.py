"""A flood of events is no flood of lines."""

from actors.transport.log_limit import BURST, PER_S, LogLimit


def test_a_burst_is_logged_and_the_rest_is_counted() -> None:
    now = 0.0
    limit = LogLimit(lambda: now)
    assert [limit.take("a") for _ in range(BURST + 3)] == [0] * BURST + [None] * 3
    assert limit.take("b") == 0, "another kind has its own bound"
    now += 1 / PER_S
    assert limit.take("a") == 3
    assert limit.take("a") is None
    now += 1 / PER_S
    assert limit.take("a") == 1
    now += 1e6
    assert [limit.take("a") for _ in range(BURST + 1)] == [0] * BURST + [None]
