"""The set-ups of the benchmark, the moments of its kills, and its lines."""

from pathlib import Path

import pytest

from bench.chaos import KillRow, moment, options
from cli.chaos.rounds import ClientImpact


@pytest.mark.parametrize(("phase", "tokens"), [("admitted", 0), ("first", 1), ("middle", 100), ("last", 158)])
def test_the_moment_of_a_kill(phase: str, tokens: int) -> None:
    assert moment(phase, 100, 160) == tokens


@pytest.mark.parametrize(("name", "workers", "standby"), [("1", 1, 0), ("2", 2, 0), ("1+2", 1, 2)])
def test_a_set_up_by_its_name(name: str, workers: int, standby: int, tmp_path: Path) -> None:
    found = options(name, 8, tmp_path)
    assert (found["workers"], found["standby"], found["max_batch_size"]) == (workers, standby, 8)


def test_a_line_has_the_counts_and_the_gaps_in_milliseconds() -> None:
    line = KillRow.of("1", "first", ClientImpact(8, 1, 2, 3, (0.5, 0.1), 0.02, "no"))
    assert (line.streams, line.bad, line.gaps) == (8, 6, 2)
    assert (line.gap_p50_ms, line.gap_p99_ms, line.undisturbed_ms) == (500.0, 500.0, 20.0)
