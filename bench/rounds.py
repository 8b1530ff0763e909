"""Measuring several subjects in turn, so that a noisy machine is as noisy for each, and what comes out of it."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


class RefusedError(Exception):
    """A subject cannot be measured; the text says why, in its own words."""


@dataclass(slots=True)
class Series:
    """One subject's figures, a figure a round, or the reason why it has none."""

    values: list[float] = field(default_factory=list)
    refused: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values and not self.refused else None

    def cell(self, digits: int = 1) -> str:
        """The median as text, or "refused: ..."; never empty."""
        if self.refused:
            return f"refused: {self.refused}"
        return "not measured" if self.median is None else f"{self.median:,.{digits}f}"


def interleave(subjects: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, Series]:
    """Measure each subject once a round, in order. One that raises `RefusedError` is not called again."""
    out = {name: Series() for name in subjects}
    for _ in range(rounds):
        for name, measure in subjects.items():
            if out[name].refused:
                continue
            try:
                out[name].values.append(measure())
            except RefusedError as error:
                out[name].refused = str(error)
    return out


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
