"""The plots of the benchmarks. matplotlib draws them; it is in the `bench` extra, and without it there are none."""

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.curves import Point
    from bench.engine import Line
    from bench.memory import Sample

STYLES = {"engine": "o-", "llama.cpp": "s--", "HTTP": "o-", "llama-server": "s--"}
PANELS = (("engine", "llama.cpp"), ("HTTP", "llama-server"))


def drawable(file: Path) -> bool:
    """Whether `file` can be drawn. Where it cannot that is said, and the figures that were measured are kept."""
    there = find_spec("matplotlib") is not None
    if not there:
        print(f"{file} is not drawn: that needs matplotlib (pip install -e '.[bench]')", file=sys.stderr)
    return there


def figure(rows: int, columns: int) -> tuple[Any, Any]:
    """A figure that needs no display, and its rows x columns axes."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(6.0 * columns, 4.2 * rows), layout="constrained")
    return drawn, drawn.subplots(rows, columns, squeeze=False)


def plot_engine(lines: Sequence["Line"], file: Path) -> None:
    """Decode tokens a second against streams: a row for each model, a colour for each precision."""
    decode = [line for line in lines if line.what == "decode"]
    models = list(dict.fromkeys(line.model for line in decode))
    if not models or not drawable(file):
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
                _draw(panel, limits, ":", colour, f"{precision} limit")
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
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize="x-small")


def plot_curves(series: Mapping[str, Sequence["Point"]], file: Path) -> None:
    """Milliseconds of a step against context and against rows; what memory alone takes is dotted, arithmetic dashed."""
    if not drawable(file):
        return
    drawn, ((left, right),) = figure(1, 2)
    colours = {left: 0, right: 0}
    for name, points in series.items():
        panel = left if len({point.context for point in points}) > 1 else right
        size = [point.context if panel is left else point.rows for point in points]
        for label, style, values in (
            (name, "o-", [1e3 * point.seconds for point in points]),
            (f"{name}: memory alone", ":", [1e3 * point.memory for point in points]),
            (f"{name}: arithmetic alone", "--", [1e3 * point.arithmetic or None for point in points]),
        ):
            _draw(panel, list(zip(size, values, strict=True)), style, colours[panel], label)
        colours[panel] += 1
    _label(left, "a step against context", "positions of each row", "ms")
    _label(right, "a step against rows", "rows", "ms")
    drawn.savefig(file)


def plot_memory(samples: Sequence["Sample"], file: Path) -> None:
    """Resident memory, device bytes, and what is counted in pieces, against requests."""
    if not drawable(file):
        return
    drawn, axes = figure(1, 3)
    requests = [sample.requests for sample in samples]
    panels = (
        ("resident memory, MB", {"rss": 1e-6}),
        ("on the device, MB", {"device": 1e-6}),
        ("slots, descriptors, threads", {"slots": 1.0, "descriptors": 1.0, "threads": 1.0}),
    )
    for panel, (title, quantities) in zip(axes[0], panels, strict=True):
        for name, scale in quantities.items():
            panel.plot(requests, [scale * getattr(sample, name) for sample in samples], label=name)
        panel.set_title(title)
        panel.set_xlabel("requests")
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="x-small")
    drawn.savefig(file)
