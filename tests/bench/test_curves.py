import statistics

import pytest

from bench.curves import Point, arguments, flaws, kv_slope, medians, steepest, turns
from bench.measurement.limits import StepBytes


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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rounds", "0"], "argument --rounds: must be 1 or more, not 0"),
        (["--steps", "0"], "argument --steps: must be 1 or more, not 0"),
        (["--all-rows", "8", "0"], "argument --all-rows: must be 1 or more, not 0"),
        (["--quantize", "int3"], "argument --quantize: invalid choice: 'int3'"),
        (["--rows", "--all-rows"], "argument --all-rows: without --rows as well there is no curve to measure"),
        (["--contexts", "3", "--steps", "7"], "argument --contexts: 3 tokens are not more than half of --steps 7"),
    ],
)
def test_what_would_measure_nothing_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments(words)
    assert says in capsys.readouterr().err


def test_quick_is_what_was_not_given() -> None:
    args = arguments(["--models", "tiny", "--quick", "--rows", "2", "4"])
    assert (args.models, args.rows, args.contexts, args.all_rows) == (["tiny"], [2, 4], [256, 1024, 2048], [1, 2, 4, 8])
    assert arguments(["--quick"]).models == ["110m"]
    assert arguments([]).rows == [1, 4]


def test_either_curve_can_be_left_out() -> None:
    assert arguments(["--rows"]).rows == []
    assert arguments(["--all-rows", "--contexts", "4"]).all_rows == []


def test_rounds_take_all_points_each_in_an_order_of_its_own() -> None:
    first, second = turns(32, 2, shuffled=True)
    assert sorted(first) == sorted(second) == list(range(32))
    assert first != second
    assert list(turns(3, 2, shuffled=False)) == [[0, 1, 2], [0, 1, 2]]
