import time
from collections.abc import Callable

import pytest

from bench.measurement.rounds import DISTURBED, TRIES, Others, RefusedError, Series, interleave, ratio


def counter(log: list[str], name: str, values: list[float]) -> Callable[[], float]:
    def measure() -> float:
        log.append(name)
        return values.pop(0)

    return measure


def test_subjects_take_turns() -> None:
    log: list[str] = []
    found = interleave({"a": counter(log, "a", [1.0, 3.0, 9.0]), "b": counter(log, "b", [2.0, 4.0, 8.0])}, 3)
    assert log == ["a", "b", "a", "b", "a", "b"]
    assert found["a"].median == 3.0
    assert found["b"].cell() == "4.0"


def test_a_refusal_is_shown_and_not_asked_for_again() -> None:
    asked: list[str] = []

    def refuse() -> float:
        asked.append("a")
        raise RefusedError("no field `quantize`")

    found = interleave({"a": refuse, "b": lambda: 1.0}, 3)
    assert found["a"].cell() == "refused: no field `quantize`"
    assert found["a"].median is None
    assert asked == ["a"]
    assert found["b"].values == [1.0, 1.0, 1.0]


def test_a_disturbed_measurement_is_made_again() -> None:
    shares = iter([0.0, 0.5, 0.0, DISTURBED])  # before and after each try
    found = interleave({"a": counter([], "a", [1.0, 2.0])}, 1, lambda: next(shares))["a"]
    assert (found.values, found.others, found.cell()) == ([2.0], [DISTURBED], "2.0")


def test_the_least_disturbed_of_a_few_tries_counts_and_is_marked() -> None:
    shares = iter([0.0, 0.5, 0.0, 0.2, 0.0, 0.3])
    values = [1.0, 2.0, 3.0]
    assert len(values) == TRIES
    found = interleave({"a": counter([], "a", values)}, 1, lambda: next(shares))["a"]
    assert (found.values, found.others, found.cell()) == ([2.0], [0.2], "~2.0")


def test_what_this_process_uses_is_not_taken_by_others() -> None:
    began = time.process_time()
    others = Others()
    used = time.process_time()
    while time.process_time() < used + 0.3:
        pass
    before = others._last
    others.share()
    spent = time.process_time() - began
    passed, busy, own = (now - then for now, then in zip(others._last, before, strict=True))
    tick = 0.02  # of the system's clocks
    assert 0.3 - tick <= own <= spent + tick
    assert passed >= busy


def test_a_series_without_measurement_is_reported() -> None:
    assert Series().cell() == "not measured"


def test_the_ratio_is_that_of_neighbours_in_time() -> None:
    # The machine was twice as slow in the second round: each pair still says 2.
    assert ratio(Series([10.0, 5.0, 12.0]), Series([5.0, 2.5, 6.0])) == pytest.approx(2.0)
    assert ratio(Series([8.0, 5.0]), Series([4.0, 5.0])) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(Series([1.0]), Series()), (Series(), Series([1.0])), (Series([1.0], "no"), Series([1.0]))],
)
def test_no_ratio_without_both_figures(ours: Series, theirs: Series) -> None:
    assert ratio(ours, theirs) is None
