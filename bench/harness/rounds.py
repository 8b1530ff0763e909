"""Measuring several subjects in turn, so that a noisy machine is as noisy for each, and what comes out of it."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.harness.process_statistics import psutil

DISTURBED = 0.05
"""Share of the machine's CPUs that others may take while something is measured."""
TRIES = 3
"""Times that a measurement is made in a round while others take more; the least disturbed one counts."""


class RefusedError(Exception):
    """A subject cannot be measured; the text says why, in its own words."""


@dataclass(slots=True)
class Series:
    """One subject's figures, a figure a round, or the reason why it has none."""

    values: list[float] = field(default_factory=list)
    refused: str = ""
    others: list[float] = field(default_factory=list)
    """Share of the machine's CPUs that others took meanwhile, for each figure."""

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values and not self.refused else None

    def cell(self, digits: int = 1) -> str:
        """The median as text, or "refused: ..."; never empty. A "~" says that others took CPU in most rounds."""
        if self.refused:
            return f"refused: {self.refused}"
        if self.median is None:
            return "not measured"
        mark = "~" if self.others and statistics.median(self.others) > DISTURBED else ""
        return f"{mark}{self.median:,.{digits}f}"


class Others:
    """CPU time on this machine that neither this process nor a descendant used, what a hypervisor stole included."""

    def __init__(self) -> None:
        self._cores = psutil.cpu_count() or 1
        self._last = self._read()

    def share(self) -> float:
        """Of all CPUs, since the last call. Two clocks are compared: a short time may come out a little below zero."""
        before, self._last = self._last, self._read()
        elapsed, busy, own = (now - then for now, then in zip(self._last, before, strict=True))
        return (busy - own) / elapsed if elapsed > 0 else 0.0

    def _read(self) -> tuple[float, float, float]:
        """CPU seconds: all that passed, all that were used, and those used here."""
        machine = psutil.cpu_times()._asdict()
        guests = machine.get("guest", 0.0) + machine.get("guest_nice", 0.0)  # in user and nice already
        passed = sum(machine.values()) - guests
        this, own = psutil.Process(), 0.0
        for process in [this, *this.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.Error:  # it ended just now: its parent has its time
                continue
            own += times.user + times.system + times.children_user + times.children_system
        return passed, passed - machine["idle"] - machine.get("iowait", 0.0), own


def interleave(
    subjects: Mapping[str, Callable[[], float]], rounds: int, others: Callable[[], float] = lambda: 0.0
) -> dict[str, Series]:
    """Measure each subject once a round, in order, and again while others disturb it.

    One that raises `RefusedError` is not called again. `others` gives the share that others took since its last call.
    """
    out = {name: Series() for name in subjects}
    for _ in range(rounds):
        for name, measure in subjects.items():
            if out[name].refused:
                continue
            try:
                value, share = _least_disturbed(measure, others)
            except RefusedError as error:
                out[name].refused = str(error)
            else:
                out[name].values.append(value)
                out[name].others.append(share)
    return out


def _least_disturbed(measure: Callable[[], float], others: Callable[[], float]) -> tuple[float, float]:
    tries: list[tuple[float, float]] = []
    while len(tries) < TRIES and (not tries or tries[-1][1] > DISTURBED):
        others()
        value = measure()
        tries.append((value, others()))
    return min(tries, key=lambda one: one[1])


def ratio(ours: Series, theirs: Series) -> float | None:
    """Median over the rounds of ours / theirs, each pair measured next to each other; None where one has no figure."""
    if ours.refused or theirs.refused or not ours.values or not theirs.values:
        return None
    return statistics.median(a / b for a, b in zip(ours.values, theirs.values, strict=True))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that reads well as text and is Markdown as well; all columns but the first are figures."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        figures = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return f"| {' | '.join([cells[0].ljust(widths[0]), *figures])} |"

    rule = [("-" * widths[0])] + ["-" * (width - 1) + ":" for width in widths[1:]]
    return "\n".join([line(header), line(rule), *map(line, rows)])
