import statistics

import pytest

from bench.measurement.limits import StepBytes
from bench.measurement.step_curve import Point, flaws, kv_slope, medians, steepest


def point(seconds: float, rows: int = 1, context: int = 256) -> Point:
    return Point("series", rows, context, seconds, 1000, 10.0 * rows * context, 1e6, 300.0 * rows, 1e5)


def test_what_memory_and_arithmetic_alone_take() -> None:
    read = StepBytes(weights=1000, kv_row=4)
    assert read.total(rows=2, context=50) == 1400
    assert point(1.0).memory == pytest.approx((1000 + 2560) / 1e6)
    assert point(1.0, rows=2).arithmetic == pytest.approx(600 / 1e5)


def test_the_steepest_step_is_that_of_the_greatest_factor() -> None:
    factor, rows = steepest([point(1.0, 1), point(1.1, 2), point(1.32, 3), point(1.5, 4)])
    assert factor == pytest.approx(1.2)
    assert rows == 3
    with pytest.raises(ValueError, match="empty"):
        steepest([point(1.0)])


def test_a_smooth_curve_has_no_flaw() -> None:
    assert flaws([point(1.0, 1), point(1.1, 2), point(2.0, 4), point(4.0, 8)]) == [""] * 4


def test_time_that_grows_by_more_than_the_size_is_a_cliff() -> None:
    assert flaws([point(1.0, 8), point(12.0, 16), point(13.0, 32)]) == ["", "cliff", ""]


def test_a_larger_step_that_takes_less_is_a_dip() -> None:
    assert flaws([point(1.0, 1), point(3.0, 3), point(1.5, 4)]) == ["", "", "dip"]
    assert flaws([point(1.0, 1), point(0.9, 2)]) == ["", ""], "that is noise"


def test_the_slope_is_the_speed_at_which_more_kv_is_read() -> None:
    # 2560 more bytes take 1 ms more.
    points = [point(0.005 + 0.001 * n, context=256 * n) for n in (1, 2, 4, 8)]
    assert kv_slope(points) == pytest.approx(2.56e6)
    assert kv_slope([point(1.0, context=256), point(1.0, context=512)]) == float("inf")
    with pytest.raises(statistics.StatisticsError):
        kv_slope([point(1.0)])


def test_a_disturbed_round_is_no_step_in_the_curve() -> None:
    quiet = [point(1.0, 1), point(1.1, 2)]
    assert medians([quiet, [point(9.0, 1), point(1.1, 2)], [point(1.0, 1), point(5.0, 2)]]) == quiet
