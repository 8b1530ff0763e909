"""Figures of Baton beside several peers, each with its ratio: a table, notes, and plots."""

import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.measurement.markdown import markdown
from bench.measurement.plots import add_curve, can_plot, figure, label_log_axes
from bench.measurement.rounds import Series, ratio

OURS = "Baton"
SECONDS = "s to the first token"
"""Names the figures of which less is better."""


@dataclass(slots=True)
class Standing:
    """One line of the table: each subject's figures of one run, in which they took turns."""

    model: str
    precision: str
    cpu: str
    what: str
    count: int
    """Streams or prompt tokens."""
    series: dict[str, Series]
    ours: dict[str, Series] = field(default_factory=dict)
    """Baton's figures in the run that measured each peer."""

    def __post_init__(self) -> None:
        for name in self.series.keys() - {OURS}:
            self.ours.setdefault(name, self.series.get(OURS, Series()))

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        return (self.model, self.precision, self.cpu, self.what, self.count)

    @property
    def title(self) -> str:
        target = "" if self.cpu == "host" else f" {self.cpu}"
        return f"{self.model} {self.precision}{target}, {self.what} {self.count}"

    def updated(self, line: "Standing") -> "Standing":
        """With the subjects of a later run. Baton's own figure is that of the run that others disturbed least."""
        both = [one.series[OURS] for one in (self, line) if OURS in one.series]
        best = {OURS: min(both, key=lambda one: statistics.median(one.others or [0.0]))} if both else {}
        return replace(self, series=self.series | line.series | best, ours=self.ours | line.ours)

    def ratio(self, peer: str) -> float | None:
        """Return how many times better than a peer Baton is: the median over the rounds."""
        ours, theirs = self.ours.get(peer, Series()), self.series.get(peer, Series())
        return ratio(theirs, ours) if SECONDS in self.what else ratio(ours, theirs)


def table(lines: Sequence[Standing]) -> str:
    """The lines in Markdown, with Baton's ratio to each peer in brackets, and the reasons of what was not measured."""
    names = list(dict.fromkeys(name for line in lines for name in line.series))
    notes: dict[str, str] = {}
    rows = [[line.title, *(_cell(line, name, notes) for name in names)] for line in lines]
    listed = [f"- ({mark}) not measured: {reason}" for reason, mark in notes.items()]
    return "\n".join([markdown(("", *names), rows), *([""] if listed else []), *listed])


def _cell(line: Standing, name: str, notes: dict[str, str]) -> str:
    series = line.series.get(name, Series())
    if series.refused:
        reason = " ".join(f"{name}: {series.refused}".split())
        return f"- ({notes.setdefault(reason, _mark(len(notes)))})"
    found = line.ratio(name)
    figure_ = series.cell(digits=2 if SECONDS in line.what else 1 if (series.median or 0) < 100 else 0)
    return figure_ if name == OURS or found is None else f"{figure_} ({found:.2f}x)"


def _mark(number: int) -> str:
    """a, b, ... z, aa, ab, ..."""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters


def added(before: Sequence[Standing], lines: Sequence[Standing]) -> list[Standing]:
    """The lines of earlier runs and new ones, in the order of the table. In a line of both, the subjects of the new
    one replace those of the earlier one."""
    found = {line.key: line for line in before}
    for line in lines:
        found[line.key] = found[line.key].updated(line) if line.key in found else line
    ranks = {name: rank for rank, name in enumerate(("bf16", "int8", "int4"))}
    whats = list(dict.fromkeys(line.what for line in found.values()))

    def order(line: Standing) -> tuple[Any, ...]:
        return (line.model, line.cpu != "host", ranks.get(line.precision, -1), whats.index(line.what), line.count)

    return sorted(found.values(), key=order)


def write_standings(lines: Sequence[Standing], machine: Mapping[str, Any], about: Sequence[str], out: Path) -> None:
    """Write table.md, figures.json and the plots plot.svg and plot.png into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    header = f"Measured on {machine['cpu']}, {machine['threads']} threads, on {machine['time']}."
    text = [header, "", table(lines), "", *(f"- {line}" for line in about)]
    (out / "table.md").write_text("\n".join(text) + "\n")
    fields = {"machine": machine, "about": list(about), "lines": [asdict(line) for line in lines]}
    (out / "figures.json").write_text(json.dumps(fields))
    _plot(lines, str(machine["cpu"]), out)


def read_standings(out: Path, machine: Mapping[str, Any]) -> list[Standing]:
    """The lines of earlier runs in `out`; none without such a folder. Raises ValueError if another CPU was measured."""
    file = out / "figures.json"
    if not file.exists():
        return []
    fields = json.loads(file.read_text())
    if fields["machine"]["cpu"] != machine["cpu"]:
        raise ValueError(f"{file} has the figures of another CPU: {fields['machine']['cpu']}")
    return [_line(line) for line in fields["lines"]]


def _line(fields: dict[str, Any]) -> Standing:
    line = Standing(**fields)
    series, ours = ({name: Series(**one) for name, one in fields[key].items()} for key in ("series", "ours"))
    return replace(line, series=series, ours=ours)


def machine_fields(cpu: str, threads: int) -> dict[str, Any]:
    return {"cpu": cpu, "threads": threads, "time": time.strftime("%F")}


def _plot(lines: Sequence[Standing], cpu: str, out: Path) -> None:
    """Tokens a second against streams and prompt tokens: a row for each precision, a colour for each subject."""
    shown = [line for line in lines if line.what in ("decode", "prefill")]
    rows = list(dict.fromkeys((line.model, line.precision, line.cpu) for line in shown))
    if not rows or not can_plot(out / "plot.svg"):
        return
    names = list(dict.fromkeys(name for line in shown for name in line.series))
    whole, axes = figure(len(rows), 2)
    for (model, precision, target), panels in zip(rows, axes, strict=True):
        for (what, x), panel in zip((("decode", "streams"), ("prefill", "prompt tokens")), panels, strict=True):
            chosen = [line for line in shown if line.what == what and line.key[:3] == (model, precision, target)]
            for colour, name in enumerate(names):
                points = [(line.count, line.series[name].median) for line in chosen if name in line.series]
                add_curve(panel, points, "o-" if name == OURS else "s--", colour, name)
            title = f"{model} {precision}, {what}" + ("" if target == "host" else f", {target}")
            label_log_axes(panel, title, x, "tokens/s")
    whole.suptitle(cpu, fontsize="small")
    whole.savefig(out / "plot.svg")
    whole.savefig(out / "plot.png", dpi=100)
