"""Figures of the engine beside a peer's and beside the limits: lines of a table, and a plot."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.measurement.limits import Work
from bench.measurement.machine import cpu_model
from bench.measurement.markdown import markdown
from bench.measurement.plots import add_curve, can_plot, figure, label_log_axes
from bench.measurement.rounds import Series, ratio
from workers.host.topology import usable_cores

SUBJECTS = ("engine", "llama.cpp", "HTTP", "llama-server", "in turn", "bandwidth", "peak")
"""The systems of a comparison, in the order in which they are measured."""
STYLES = {"engine": "o-", "llama.cpp": "s--", "HTTP": "o-", "llama-server": "s--"}
PANELS = (("engine", "llama.cpp"), ("HTTP", "llama-server"))


@dataclass(slots=True)
class Comparison:
    """One line of the table: what was measured, and each subject's series."""

    model: str
    precision: str
    what: str
    count: int
    """Streams or prompt tokens."""
    series: dict[str, Series]
    work: Work | None = None
    """The work of one step, which generates or reads one token for each of `count`."""

    @property
    def limit(self) -> Series:
        """Tokens a second that memory and arithmetic allow; empty if neither was measured."""
        return Series([self.count / work.seconds(*pair) for work, pair in self._measured()])

    @property
    def bound(self) -> str:
        """The limit in most rounds: memory or arithmetic; empty without a limit."""
        bounds = [work.bound(*pair) for work, pair in self._measured()]
        return max(sorted(set(bounds)), key=bounds.count, default="")

    def _measured(self) -> list[tuple[Work, tuple[float, float]]]:
        """The work with each round's bandwidth and peak."""
        if self.work is None:
            return []
        bandwidth, peak = (self.series.get(name, Series()).values for name in ("bandwidth", "peak"))
        return [(self.work, pair) for pair in zip(bandwidth, peak, strict=True)]

    def cells(self) -> list[str]:
        """The line as text, with the three ratios that matter."""
        engine, peer, http, peer_http = (self.series.get(name, Series()) for name in SUBJECTS[:4])
        limit = self.limit
        return [
            f"{self.model} {self.precision} {self.what} {self.count}",
            *(engine.cell(), peer.cell(), _percent(ratio(engine, peer), "x")),
            *(http.cell(), peer_http.cell(), _percent(ratio(http, peer_http), "x")),
            *(limit.cell() if limit.values else "", _percent(ratio(engine, limit), "%"), self.bound),
            _percent(self.series.get("in turn", Series()).median, "%"),
        ]


HEADER = ("", "engine", "llama.cpp", "ratio", "HTTP", "llama-server", "ratio", "limit", "of limit", "bound", "in turn")


def _percent(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.2f}x" if unit == "x" else f"{value:.0%}"


def write_results(lines: Sequence[Comparison], out: Path) -> None:
    """Write table.md, figures.json and plot.svg into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.md").write_text(markdown(HEADER, [line.cells() for line in lines]) + "\n")
    machine = {"cpu": cpu_model(), "cores": usable_cores(), "time": time.strftime("%F")}
    (out / "figures.json").write_text(json.dumps({"machine": machine, "lines": [asdict(line) for line in lines]}))
    plot_engine(lines, out / "plot.svg")


def plot_engine(lines: Sequence[Comparison], file: Path) -> None:
    """Decode tokens a second against streams: a row for each model, a colour for each precision."""
    decode = [line for line in lines if line.what == "decode"]
    models = list(dict.fromkeys(line.model for line in decode))
    if not models or not can_plot(file):
        return
    precisions = list(dict.fromkeys(line.precision for line in decode))
    whole, axes = figure(len(models), len(PANELS))
    for model, row in zip(models, axes, strict=True):
        for names, panel in zip(PANELS, row, strict=True):
            for colour, precision in enumerate(precisions):
                chosen = [line for line in decode if (line.model, line.precision) == (model, precision)]
                for name in names:
                    points = [(line.count, line.series[name].median) for line in chosen if name in line.series]
                    add_curve(panel, points, STYLES[name], colour, f"{precision} {name}")
                limits = [(line.count, line.limit.median) for line in chosen]
                add_curve(panel, limits, ":", colour, f"{precision} limit")
            label_log_axes(panel, f"{model}: {' and '.join(names)}", "streams", "tokens/s")
    whole.savefig(file)
