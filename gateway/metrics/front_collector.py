"""The metrics of fronts, the processes that serve HTTP if there are several."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.metrics.families import Families
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
        families = Families(self.samples(), LABELS, lambda sample: [str(sample.front)])
        yield families.gauge("baton_front_ready", "1 if the front accepts connections", lambda s: s.ready)
        yield families.gauge("baton_front_connections", "HTTP connections of the front", lambda s: s.connections)
        yield families.counter("baton_front_restarts", "Restarts of the front after its end", lambda s: s.restarts)
        yield families.counter("baton_front_cpu_seconds", "Processor time of the front", lambda s: s.cpu_s)
        yield families.gauge("baton_front_memory_bytes", "Resident memory of the front", lambda s: s.memory_bytes)
        yield families.gauge(
            "baton_front_event_loop_lag_seconds",
            "Longest time of the last minute for which the front's event loop kept a callback waiting",
            lambda s: s.lag_s,
        )
