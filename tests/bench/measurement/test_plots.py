"""Plots with matplotlib, and without it."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from bench.measurement import plots
from bench.measurement.plots import can_plot
from bench.memory import EngineSample, plot_memory

SAMPLES = [EngineSample(count, 1, 1, 1, 1, 1, 1, 1) for count in (0, 10)]


def test_without_matplotlib_a_plot_is_left_out_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    plot_memory(SAMPLES, tmp_path / "plot.svg")
    assert list(tmp_path.iterdir()) == []
    printed = capsys.readouterr().err
    assert "plot.svg is left out" in printed
    assert "pip install -e '.[bench]'" in printed


def test_with_matplotlib_there_is_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: ModuleSpec(name, None))
    assert can_plot(tmp_path / "plot.svg")
    assert capsys.readouterr().err == ""
