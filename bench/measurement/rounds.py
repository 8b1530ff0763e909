"""Interleaved measurements: several subjects take turns, so that a noisy machine is as noisy for each."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

DISTURBED = 0.05
"""Share of the machine's CPUs that other processes may use during a measurement."""
TRIES = 3
"""Attempts per round while other processes use more than that; the least disturbed one counts."""


class RefusedError(Exception):
    """Raised when a subject cannot be measured; the text is its own reason."""


@dataclass(slots=True)
class Series:
    """One subject's figures, a figure a round, or the reason why it has none."""

    values: list[float] = field(default_factory=list)
    refused: str = ""
    others: list[float] = field(default_factory=list)
    """Share of the machine's CPUs that other processes used meanwhile, for each figure."""

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values and not self.refused else None

    def cell(self, digits: int = 1) -> str:
        """The median as text, or "refused: ..."; never empty. A "~" marks disturbance in most rounds."""
        if self.refused:
            return f"refused: {self.refused}"
        if self.median is None:
            return "not measured"
        mark = "~" if self.others and statistics.median(self.others) > DISTURBED else ""
        return f"{mark}{self.median:,.{digits}f}"


class Others:
    """CPU time on this machine that neither this process nor a descendant used; stolen time is included."""

    def __init__(self) -> None:
        self._last = self._read()

    def share(self) -> float:
        """The share of all CPUs since the last call; by the difference of two clocks it may be just below 0."""
        before, self._last = self._last, self._read()
        elapsed, busy, own = (now - then for now, then in zip(self._last, before, strict=True))
        return (busy - own) / elapsed if elapsed > 0 else 0.0

    def _read(self) -> tuple[float, float, float]:
        """CPU seconds in all, used by any process, and used by this one and its descendants."""
        machine = psutil.cpu_times()._asdict()
        virtual = machine.get("guest", 0.0) + machine.get("guest_nice", 0.0)  # counted in user and nice
        passed = sum(machine.values()) - virtual
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
    """Measure each subject once a round, in order, and again if other processes disturb it.

    One that raises `RefusedError` is not called again. `others` returns the share since its last call (`Others.share`).
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


def refuser(reason: str) -> Callable[[], float]:
    """Return a subject that cannot be measured, for this reason."""

    def refuse() -> float:
        raise RefusedError(reason)

    return refuse


def _least_disturbed(measure: Callable[[], float], others: Callable[[], float]) -> tuple[float, float]:
    tries: list[tuple[float, float]] = []
    while len(tries) < TRIES and (not tries or tries[-1][1] > DISTURBED):
        others()
        value = measure()
        tries.append((value, others()))
    return min(tries, key=lambda one: one[1])


def ratio(ours: Series, theirs: Series) -> float | None:
    """Median over the rounds of ours / theirs, the figures of a round next to each other; None without both."""
    if ours.refused or theirs.refused or not ours.values or not theirs.values:
        return None
    return statistics.median(a / b for a, b in zip(ours.values, theirs.values, strict=True))
