"""Prometheus metrics: the workers' counters, the gateway's gauges, and histograms of latency."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import Metric, Sample

from gateway.metrics.adapter_collector import AdapterCollector, AdapterSamples
from gateway.metrics.front_collector import FrontCollector
from gateway.metrics.histogram import Histogram
from gateway.metrics.key_collector import KeyCollector, KeyUse
from gateway.metrics.samples import FrontSample, Observed, Samples, Waiting
from gateway.metrics.vllm_collector import VllmCollector
from gateway.metrics.worker_collector import HISTOGRAMS, LABELS, WorkerCollector
from gateway.settings import MetricsNames

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one gateway, in a registry of its own. At every scrape it calls `samples`, `waiting` (sequences
    without a worker, by model) and `refused` (what the links refused, by reason). With `names` "vllm" there are vLLM's
    names beside ours."""

    def __init__(
        self,
        samples: Samples,
        waiting: Waiting,
        refused: Callable[[], Mapping[str, int]],
        names: MetricsNames = "baton",
    ) -> None:
        self._registry = CollectorRegistry()
        self._observed: dict[tuple[str, str, str], Observed] = {}
        self._registry.register(WorkerCollector(samples, waiting, refused, self._observed))
        self._keys = KeyCollector()
        self._registry.register(self._keys)
        self._fronts = FrontCollector()
        self._registry.register(self._fronts)
        self._ended = Counter("baton_sequences_ended", "Ends by outcome", [*LABELS, "outcome"], registry=self._registry)
        if names == "vllm":
            self._registry.register(VllmCollector(samples, waiting, self._observed, self._ended))
        self._loaded = AdapterCollector(vllm=names == "vllm")
        self._registry.register(self._loaded)
        ProcessCollector(registry=self._registry)  # of the gateway's process, on Linux
        self._limits_shared = Gauge(
            "baton_limits_shared", "Limits of API keys hold for all gateways", registry=self._registry
        )
        self._replays = Counter(
            "baton_replays",
            "Sequences that lost their worker, by cause and by how it went on",
            ["model", "cause", "outcome"],
            registry=self._registry,
        )
        self._row_transfers = Counter(
            "baton_row_transfers",
            "Sequences of draining workers whose cache rows were to go to another one, by outcome",
            ["model", "outcome"],
            registry=self._registry,
        )
        self._row_bytes = Counter(
            "baton_row_transfer_bytes",
            "Bytes of cache rows that other workers have taken",
            ["model"],
            registry=self._registry,
        )
        self._detachments = Counter(
            "baton_stream_detachments",
            "Streams whose client's connection ended, by how that ended",
            ["model", "outcome"],
            registry=self._registry,
        )
        self._records = Gauge(
            "baton_streams_resumable_anywhere",
            "Streams that another gateway can continue",
            registry=self._registry,
        )
        self._prefix_tokens = Counter(
            "baton_prefix_routed_tokens",
            "Prompt tokens that were not computed because the router preferred a worker that had them",
            ["model"],
            registry=self._registry,
        )
        self._adapters = Counter(
            "baton_adapter_requests",
            "Admitted requests that named an adapter of a model",
            ["model", "adapter"],
            registry=self._registry,
        )
        self._model_changes = Counter(
            "baton_model_changes",
            "Loads and unloads of models, and loads that failed",
            ["model", "change"],
            registry=self._registry,
        )
        self._model_memory = Gauge(
            "baton_model_memory_bytes",
            "Bytes of memory that a model counts with while it is loaded",
            ["model"],
            registry=self._registry,
        )
        self._bodies = Gauge("baton_body_bytes", "Bytes of request bodies that are held", registry=self._registry)
        self._answers = Gauge(
            "baton_answer_bytes", "Bytes of answers that clients have yet to take", registry=self._registry
        )
        self._lag = Gauge(
            "baton_event_loop_lag_seconds",
            "Longest time for which the event loop kept a callback waiting in the last minute",
            registry=self._registry,
        )
        self._connections = Gauge("baton_connections", "HTTP connections that are open", registry=self._registry)
        self.connections_refused = Counter(
            "baton_connections_refused",
            "HTTP connections that were rejected, for want of a descriptor or over max_connections",
            registry=self._registry,
        )
        """Connections from which no request was read."""
        self._responses = Counter(
            "baton_http_responses",
            "HTTP responses by route, status and the code of a refusal or failure",
            ["route", "status", "reason"],
            registry=self._registry,
        )
        self._resumable = Gauge(
            "baton_resumable_streams", "Streams that can be resumed, by state", ["state"], registry=self._registry
        )

    def of(self, model: str, backend: str, worker: str) -> Observed:
        """The histograms and the counter of a worker, which the caller keeps."""
        labels = (model, backend, worker)
        found = self._observed.get(labels)
        if found is None:
            new = {field: Histogram(bounds) for _, field, bounds, _ in HISTOGRAMS}
            found = Observed(**new, ended=lambda outcome: self._ended.labels(*labels, outcome))
            self._observed[labels] = found
        return found

    def forget(self, worker: str) -> None:
        """Remove the series of a worker that is gone."""
        for labels in [labels for labels in self._observed if labels[2] == worker]:
            del self._observed[labels]
        for family in self._ended.collect():
            gone = {tuple(each.labels.values()) for each in family.samples if each.labels["worker"] == worker}
            for values in gone:
                self._ended.remove(*values)

    def prefix_tokens_routed(self, model: str) -> Counter:
        """The counter of prompt tokens that the choice of a worker has saved."""
        return self._prefix_tokens.labels(model)

    def replayed(self, model: str, cause: str, outcome: str) -> Counter:
        """The counter of replays with this cause and outcome."""
        return self._replays.labels(model, cause, outcome)

    def row_transfer(self, model: str, outcome: str) -> Counter:
        """The counter of transfers of cache rows with this outcome."""
        return self._row_transfers.labels(model, outcome)

    def rows_transferred(self, model: str) -> Counter:
        """The counter of bytes of cache rows that another worker has taken."""
        return self._row_bytes.labels(model)

    def replays(self) -> int:
        """Count the replays that have ended, well or not."""
        return int(sum(each.value for family in self._replays.collect() for each in family.samples if _counts(each)))

    def adapted(self, model: str, adapter: str) -> Counter:
        """The counter of requests that named this adapter of a model."""
        return self._adapters.labels(model, adapter)

    def forget_adapter(self, model: str, adapter: str) -> None:
        """Drop the counter of an adapter that is gone: clients choose the names of those that they load."""
        self._adapters.remove(model, adapter)

    def model_changed(self, model: str, change: str) -> None:
        """Count a load, an unload, or a load that failed."""
        self._model_changes.labels(model, change).inc()

    def watch_model(self, model: str, memory: Callable[[], float]) -> None:
        """Set the function that returns the bytes that a model counts with, which is called at every scrape."""
        self._model_memory.labels(model).set_function(memory)

    def detachment(self, model: str, outcome: str) -> Counter:
        """The counter of streams whose connection ended, by what became of them."""
        return self._detachments.labels(model, outcome)

    def http_response(self, route: str, status: int, reason: str) -> None:
        """Count a response. `reason` is the code of an error, or empty."""
        self._responses.labels(route, status, reason).inc()

    def watch_keys(self, uses: Callable[[], Mapping[str, KeyUse]]) -> None:
        """Set the function that returns the use of the API keys by name, which is called at every scrape."""
        self._keys.uses = uses

    def watch_limits(self, shared: Callable[[], bool]) -> None:
        """Set the function that returns whether limits of keys hold for all gateways; it is called at every scrape."""
        self._limits_shared.set_function(lambda: float(shared()))

    def watch_adapters(self, samples: AdapterSamples) -> None:
        """Set the function that returns the adapters of models, which is called at every scrape."""
        self._loaded.samples = samples

    def watch_records(self, count: Callable[[], float]) -> None:
        """Set the function that counts the streams that another gateway can continue; it is called at every scrape."""
        self._records.set_function(count)

    def watch_fronts(self, samples: Callable[[], Sequence[FrontSample]]) -> None:
        """Set the function that returns the fronts, which is called at every scrape."""
        self._fronts.samples = samples

    def watch_streams(self, state: str, count: Callable[[], float]) -> None:
        """Set the function that counts the resumable streams in a state, which is called at every scrape."""
        self._resumable.labels(state).set_function(count)

    def watch_bodies(self, count: Callable[[], float]) -> None:
        """Set the function that counts the bytes of bodies, which is called at every scrape."""
        self._bodies.set_function(count)

    def watch_answers(self, count: Callable[[], float]) -> None:
        """Set the function that counts the bytes of answers, which is called at every scrape."""
        self._answers.set_function(count)

    def watch_connections(self, count: Callable[[], float]) -> None:
        """Set the function that counts the open connections, which is called at every scrape."""
        self._connections.set_function(count)

    def watch_loop(self, longest: Callable[[], float]) -> None:
        """Set the function that returns the longest lag of the event loop in the last minute, which is called at every
        scrape."""
        self._lag.set_function(longest)

    def render(self) -> bytes:
        """All metrics in the text format, version 0.0.4."""
        return b"".join(self.families())

    def families(self) -> Iterator[bytes]:
        """The same by families, of which none takes long: those of 64 workers take 50 ms together."""
        for family in self._registry.collect():
            yield generate_latest(_Family(family))


def _counts(sample: Sample) -> bool:
    return sample.name.endswith("_total")  # the other ones are times of creation


class _Family(CollectorRegistry):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family
