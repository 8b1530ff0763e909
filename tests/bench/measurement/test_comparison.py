import json
from pathlib import Path

import pytest

from bench.measurement.comparison import HEADER, Comparison, write_results
from bench.measurement.limits import Work
from bench.measurement.rounds import Series


def line(**series: Series) -> Comparison:
    names = {"llama_cpp": "llama.cpp", "in_turn": "in turn"}
    named = {names.get(name, name): one for name, one in series.items()}
    return Comparison("110m", "bf16", "decode", 4, named, work=Work(100e6, 2e6))


def test_a_line_has_the_figures_and_their_ratios() -> None:
    found = line(
        engine=Series([100.0, 50.0]),
        llama_cpp=Series([50.0, 50.0]),
        bandwidth=Series([10e9, 5e9]),
        peak=Series([1e9, 1e9]),
        in_turn=Series([0.5, 0.6]),
    )
    assert found.limit.values == [400.0, 200.0]
    assert found.cells() == [
        *("110m bf16 decode 4", "75.0", "50.0", "1.50x"),
        *("not measured", "not measured", ""),
        *("300.0", "25%", "memory", "55%"),
    ]
    assert len(found.cells()) == len(HEADER)


def test_the_limit_is_the_slower_of_memory_and_arithmetic() -> None:
    # 100 MB take 10 ms, 2 million multiply-adds 20, 5 and 20.
    found = line(engine=Series([50.0] * 3), bandwidth=Series([10e9] * 3), peak=Series([1e8, 4e8, 1e8]))
    assert found.limit.values == pytest.approx([200.0, 400.0, 200.0])
    assert found.cells()[-4:-1] == ["200.0", "25%", "arithmetic"]


def test_there_is_no_limit_where_no_work_is_counted() -> None:
    found = Comparison("110m", "bf16", "decode", 4, {"engine": Series([1.0])})
    assert found.cells()[-4:] == ["", "", "", ""]


def test_what_the_engine_refuses_is_in_the_table() -> None:
    found = line(engine=Series(refused="no"), llama_cpp=Series([50.0]), bandwidth=Series([1e9]), peak=Series([1e9]))
    assert found.cells()[1:4] == ["refused: no", "50.0", ""]


def test_the_results_are_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = [
        line(engine=Series([100.0]), llama_cpp=Series([50.0]), bandwidth=Series([1e9]), peak=Series([1e9])),
        line(engine=Series([], "no")),
    ]
    write_results(lines, tmp_path)
    assert "refused: no" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "figures.json").read_text())["lines"][0]["series"]["engine"]["values"] == [100.0]
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
