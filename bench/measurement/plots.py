"""Plots by matplotlib, which is in the `bench` extra. Without it benchmarks write everything but their plots."""

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def can_plot(file: Path) -> bool:
    """Return True if matplotlib is installed. If not, print that `file` is left out."""
    found = find_spec("matplotlib") is not None
    if not found:
        print(f"{file} is left out: plots need matplotlib (pip install -e '.[bench]')", file=sys.stderr)
    return found


def figure(rows: int, columns: int) -> tuple[Any, Any]:
    """A figure that needs no display, and its rows x columns axes."""
    from matplotlib.figure import Figure

    whole = Figure(figsize=(6.0 * columns, 4.2 * rows), layout="constrained")
    return whole, whole.subplots(rows, columns, squeeze=False)


def add_curve(panel: Any, points: Sequence[tuple[float, float | None]], style: str, colour: int, name: str) -> None:
    """Add the points that have a value. Nothing is added without any."""
    found = [(x, y) for x, y in points if y is not None]
    if found:
        panel.plot(*zip(*found, strict=True), style, color=f"C{colour}", label=name, markersize=4)


def label_log_axes(panel: Any, title: str, x: str, y: str) -> None:
    """Logarithmic axes with a title, labels and a legend."""
    panel.set_title(title)
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.grid(alpha=0.3)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="x-small")


def plot_against(panel: Any, title: str, x: tuple[str, Sequence[float]], curves: Mapping[str, Sequence[float]]) -> None:
    """Curves by name on linear axes from 0, against the values that `x` names."""
    name, values = x
    for curve, heights in curves.items():
        panel.plot(values, heights, label=curve)
    panel.set_title(title)
    panel.set_xlabel(name)
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.legend(fontsize="x-small")
