"""The adapters that requests may name, and under vLLM's name those that have requests."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class AdapterSample:
    """The adapters of one model at one scrape."""

    adapters: tuple[str, ...]
    places: int
    """The most adapters that one step may have."""
    running: frozenset[str]
    waiting: frozenset[str]


AdapterSamples = Callable[[], Mapping[str, AdapterSample]]
"""Returns the adapters by the names of their models, without models that have none."""


class AdapterCollector(Collector):
    """Collects the families. `samples` is set by the router."""

    def __init__(self, *, vllm: bool) -> None:
        self.samples: AdapterSamples = dict
        self._vllm = vllm

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        samples = self.samples()
        loaded = GaugeMetricFamily(
            "baton_adapter_loaded", "1 for each adapter that requests may name", labels=["model", "adapter"]
        )
        for model, sample in samples.items():
            for adapter in sample.adapters:
                loaded.add_metric((model, adapter), 1)
        yield loaded
        if not self._vllm:
            return
        labels = ["max_lora", "waiting_lora_adapters", "running_lora_adapters"]
        family = GaugeMetricFamily(
            "vllm:lora_requests_info", "Adapters of requests; the value is the time", labels=labels
        )
        for sample in samples.values():
            names = [",".join(sorted(each)) for each in (sample.waiting, sample.running)]
            family.add_metric((str(sample.places), *names), time.time())
        yield family
