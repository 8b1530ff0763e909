"""Families of metrics with one series for each of some samples."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

SampleT = TypeVar("SampleT")


class Families(Generic[SampleT]):
    """Makes families of the same samples, which have the same labels."""

    def __init__(
        self, samples: Sequence[SampleT], labels: Sequence[str], label_values: Callable[[SampleT], Sequence[str]]
    ) -> None:
        self._labels = labels
        self._series = [(label_values(sample), sample) for sample in samples]

    def gauge(self, name: str, text: str, value: Callable[[SampleT], float]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=self._labels)
        for values, sample in self._series:
            family.add_metric(values, value(sample))
        return family

    def counter(self, name: str, text: str, value: Callable[[SampleT], float]) -> Metric:
        family = CounterMetricFamily(name, text, labels=self._labels)
        for values, sample in self._series:
            family.add_metric(values, value(sample))
        return family
