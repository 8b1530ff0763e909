"""One look at a running server: its workers and its metrics."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from cli.client.administration import Administration
from cli.config.errors import CommandFailed

GOOD_ENDS = frozenset({"stop", "length", "cancelled"})
"""Outcomes of sequences that are no failures."""
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The answers of `/admin/workers` and `/metrics`."""

    at: float
    """Seconds of a steady clock."""
    workers: list[dict[str, Any]]
    values: dict[str, dict[Labels, float]] = field(default_factory=dict)
    """Values of the metrics by name and sorted labels."""

    def series(self, name: str, **labels: str) -> dict[Labels, float]:
        """The series of a metric that have these labels."""
        wanted = labels.items()
        return {found: value for found, value in self.values.get(name, {}).items() if wanted <= dict(found).items()}

    def total(self, name: str, **labels: str) -> float:
        """The sum over all series of a metric that have these labels; 0 without any."""
        return sum(self.series(name, **labels).values())

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums of a metric by the values of one label."""
        sums: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            key = dict(labels).get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums


def take_sample(client: Administration, clock: Callable[[], float] = time.monotonic) -> LoadSample:
    """Ask a server. Raises `CommandFailed` if it does not answer as a Baton server does."""
    workers = client.get("/admin/workers").get("workers")
    text = client.text("/metrics")
    if not isinstance(workers, list):
        raise CommandFailed("the server did not answer as a Baton server does; check --url")
    values: dict[str, dict[Labels, float]] = {}
    try:
        for name, labels, value in _series(text):
            values.setdefault(name, {})[labels] = value
    except ValueError as error:
        raise CommandFailed(f"/metrics is not in Prometheus' text format: {error}") from error
    return LoadSample(clock(), workers, values)


def _series(text: str) -> Iterator[tuple[str, Labels, float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, tuple(sorted(sample.labels.items())), sample.value


@dataclass(frozen=True, slots=True)
class LoadChange:
    """Difference of two samples. Between a sample and itself all rates are 0."""

    before: LoadSample
    now: LoadSample

    @property
    def seconds(self) -> float:
        return self.now.at - self.before.at

    def count(self, name: str, **labels: str) -> float:
        """The increase of a counter, over all series that have these labels."""
        return sum(self._increases(name, **labels).values())

    def _increases(self, name: str, **labels: str) -> dict[Labels, float]:
        """The increase of each series. One that is lower than before has begun anew, in a new server; one that is gone
        was of a worker that is."""
        before, now = self.before.series(name, **labels), self.now.series(name, **labels)
        old = {each: before.get(each, 0.0) for each in now}
        return {each: value - old[each] if value >= old[each] else value for each, value in now.items()}

    def rate(self, name: str, **labels: str) -> float:
        """The increase a second."""
        return self.count(name, **labels) / self.seconds if self.seconds > 0 else 0.0

    def quantile(self, part: float, name: str, **labels: str) -> float | None:
        """A quantile of what a histogram has observed meanwhile, interpolated within its bucket as Prometheus does.
        None if it observed nothing."""
        by_bound: dict[float, float] = {}
        for found, count in self._increases(f"{name}_bucket", **labels).items():
            bound = float(dict(found)["le"])
            by_bound[bound] = by_bound.get(bound, 0.0) + count
        counts = sorted(by_bound.items())
        total = counts[-1][1] if counts else 0.0
        if total <= 0:
            return None
        low, below = 0.0, 0.0
        for bound, count in counts:
            if count >= part * total:
                if bound == float("inf"):
                    return low
                inside = count - below
                return low + (bound - low) * ((part * total - below) / inside if inside else 1.0)
            low, below = bound, count
        return low
