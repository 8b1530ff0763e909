"""What is drawn of a benchmark, where matplotlib is and where it is not."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import bench.harness.plots
from bench.harness.plots import drawable, plot_memory
from bench.memory import Sample

SAMPLES = [Sample(count, 1, 1, 1, 1, 1, 1, 1) for count in (0, 10)]


def test_without_matplotlib_a_plot_is_left_out_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench.harness.plots, "find_spec", lambda _: None)
    plot_memory(SAMPLES, tmp_path / "plot.svg")
    assert list(tmp_path.iterdir()) == []
    said = capsys.readouterr().err
    assert "plot.svg is not drawn" in said
    assert "pip install -e '.[bench]'" in said


def test_with_matplotlib_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench.harness.plots, "find_spec", lambda name: ModuleSpec(name, None))
    assert drawable(tmp_path / "plot.svg")
    assert capsys.readouterr().err == ""
