"""The plots of the benchmarks. matplotlib draws them; it is in the `bench` extra."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.engine import Line

STYLES = {"engine": "o-", "llama.cpp": "s--", "HTTP": "o-", "llama-server": "s--"}
PANELS = (("engine", "llama.cpp"), ("HTTP", "llama-server"))


def figure(rows: int, columns: int) -> tuple[Any, Any]:
    """A figure that needs no display, and its rows x columns axes."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6.0 * columns, 4.2 * rows), layout="constrained")
    return drawn, drawn.subplots(rows, columns, squeeze=False)


def plot_engine(lines: Sequence["Line"], file: Path) -> None:
    """Decode tokens a second against streams: a row for each model, a colour for each precision."""
    decode = [line for line in lines if line.what == "decode"]
    models = list(dict.fromkeys(line.model for line in decode))
    if not models:
        return
    precisions = list(dict.fromkeys(line.precision for line in decode))
    drawn, axes = figure(len(models), len(PANELS))
    for model, row in zip(models, axes, strict=True):
        for names, panel in zip(PANELS, row, strict=True):
            for colour, precision in enumerate(precisions):
                chosen = [line for line in decode if (line.model, line.precision) == (model, precision)]
                for name in names:
                    points = [(line.count, line.series[name].median) for line in chosen if name in line.series]
                    _draw(panel, points, STYLES[name], colour, f"{precision} {name}")
                limits = [(line.count, line.limit.median) for line in chosen]
                _draw(panel, limits, ":", colour, f"{precision} memory limit")
            _label(panel, f"{model}: {' and '.join(names)}", "streams", "tokens/s")
    drawn.savefig(file)


def _draw(panel: Any, points: Sequence[tuple[float, float | None]], style: str, colour: int, label: str) -> None:
    there = [(x, y) for x, y in points if y is not None]
    if there:
        panel.plot(*zip(*there, strict=True), style, color=f"C{colour}", label=label, markersize=4)


def _label(panel: Any, title: str, x: str, y: str) -> None:
    panel.set_title(title)
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.grid(alpha=0.3)
    panel.legend(fontsize="x-small")
