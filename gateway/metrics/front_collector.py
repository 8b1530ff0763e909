"""The metrics of fronts, the processes that serve HTTP if there are several."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics.samples import FrontSample

LABELS = ("front",)


class FrontCollector(Collector):
    """Collects the families of fronts, which are empty without fronts."""

    def __init__(self) -> None:
        self.samples: Callable[[], Sequence[FrontSample]] = tuple
        """Returns the fronts as they are now."""

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        samples = self.samples()
        yield _gauge("baton_front_ready", "1 if the front accepts connections", samples, lambda s: s.ready)
        yield _gauge("baton_front_connections", "HTTP connections of the front", samples, lambda s: s.connections)
        yield _counter("baton_front_restarts", "Restarts of the front after its end", samples, lambda s: s.restarts)
        yield _counter("baton_front_cpu_seconds", "Processor time of the front", samples, lambda s: s.cpu_s)
        yield _gauge("baton_front_memory_bytes", "Resident memory of the front", samples, lambda s: s.memory_bytes)
        yield _gauge(
            "baton_front_event_loop_lag_seconds",
            "Longest time of the last minute for which the front's event loop kept a callback waiting",
            samples,
            lambda s: s.lag_s,
        )


def _gauge(name: str, text: str, samples: Sequence[FrontSample], value: Callable[[FrontSample], float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=LABELS)
    for sample in samples:
        family.add_metric([str(sample.front)], value(sample))
    return family


def _counter(name: str, text: str, samples: Sequence[FrontSample], value: Callable[[FrontSample], float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=LABELS)
    for sample in samples:
        family.add_metric([str(sample.front)], value(sample))
    return family
