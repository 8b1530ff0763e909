"""Curves of a decode step's time: their points, what is not smooth about them, and their table and plot."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.measurement.plots import add_curve, can_plot, figure, label_log_axes

NOISE = 1.15
"""The factor beyond which a difference is a cliff or a dip."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured step size."""

    series: str
    rows: int
    context: int
    seconds: float
    weight_bytes: float
    kv_bytes: float
    bandwidth: float
    multiply_adds: float
    """0 where they are not counted."""
    peak: float

    @property
    def size(self) -> int:
        """Positions attended to, of all rows."""
        return self.rows * self.context

    @property
    def memory(self) -> float:
        """Seconds that memory alone would take."""
        return (self.weight_bytes + self.kv_bytes) / self.bandwidth

    @property
    def arithmetic(self) -> float:
        """Seconds that multiply-adds alone would take."""
        return self.multiply_adds / self.peak


def flaws(points: Sequence[Point]) -> list[str]:
    """For each point of one series, in rising order: "cliff", "dip" or "", compared with the point before it."""
    out = [""] * len(points)
    for at, (low, high) in enumerate(itertools.pairwise(points), start=1):
        if high.seconds > NOISE * low.seconds * high.size / low.size:
            out[at] = "cliff"
        elif NOISE * high.seconds < low.seconds:
            out[at] = "dip"
    return out


def steepest(points: Sequence[Point]) -> tuple[float, int]:
    """The largest factor of time between two neighbouring numbers of rows, and the larger of the two numbers.

    Raises `ValueError` for fewer than two points.
    """
    return max((high.seconds / low.seconds, high.rows) for low, high in itertools.pairwise(points))


def kv_slope(points: Sequence[Point]) -> float:
    """Bytes of KV a second: additional KV per additional time, by least squares over a series of contexts.

    Raises `statistics.StatisticsError` for fewer than two points.
    """
    line = statistics.linear_regression([p.kv_bytes for p in points], [p.seconds for p in points])
    return 1.0 / line.slope if line.slope > 0 else float("inf")


def medians(rounds: Sequence[Sequence[Point]]) -> list[Point]:
    """The points of a series that was measured several times, each with the medians of what was measured."""

    def middle(of: Sequence[Point]) -> Point:
        return replace(
            of[0],
            seconds=statistics.median(point.seconds for point in of),
            bandwidth=statistics.median(point.bandwidth for point in of),
            peak=statistics.median(point.peak for point in of),
        )

    return [middle(each) for each in zip(*rounds, strict=True)]


HEADER = (
    "",
    "rows",
    "context",
    "step ms",
    "weights MB",
    "KV MB",
    "memory alone ms",
    "arithmetic alone ms",
    "of both",
    "",
)


def cells(point: Point, flaw: str) -> list[str]:
    """A point as a row of the table."""
    return [
        point.series,
        str(point.rows),
        str(point.context),
        f"{1e3 * point.seconds:.2f}",
        f"{point.weight_bytes / 1e6:.1f}",
        f"{point.kv_bytes / 1e6:.1f}",
        f"{1e3 * point.memory:.2f}",
        f"{1e3 * point.arithmetic:.2f}",
        f"{point.seconds / max(point.memory, point.arithmetic):.2f}x",
        flaw,
    ]


def plot_curves(series: Mapping[str, Sequence[Point]], file: Path) -> None:
    """Plot milliseconds of a step against context and against rows; memory alone is dotted, arithmetic dashed."""
    if not can_plot(file):
        return
    whole, ((left, right),) = figure(1, 2)
    colours = {left: 0, right: 0}
    for name, points in series.items():
        panel = left if len({point.context for point in points}) > 1 else right
        size = [point.context if panel is left else point.rows for point in points]
        for label, style, values in (
            (name, "o-", [1e3 * point.seconds for point in points]),
            (f"{name}: memory alone", ":", [1e3 * point.memory for point in points]),
            (f"{name}: arithmetic alone", "--", [1e3 * point.arithmetic or None for point in points]),
        ):
            add_curve(panel, list(zip(size, values, strict=True)), style, colours[panel], label)
        colours[panel] += 1
    label_log_axes(left, "a step against context", "positions of each row", "ms")
    label_log_axes(right, "a step against rows", "rows", "ms")
    whole.savefig(file)
