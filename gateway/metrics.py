"""Prometheus metrics: the workers' counters, the gateway's gauges, and histograms of latency."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.histogram import Histogram

LABELS = ("model", "backend", "worker")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_COUNTS = (
    # (name, field of the counters, Prometheus type, help). The names are those of mlxcel. Two of them lack the `_total`
    # that Prometheus requires of a counter, so their type is `unknown`.
    ("baton_batch_sequences_started", "sequences_started", "unknown", "Sequences that got a slot"),
    ("baton_batch_sequences_completed", "sequences_completed", "unknown", "Sequences that left their slot"),
    ("baton_batch_prefill_tokens", "prefill_tokens", "counter", "Prompt tokens computed"),
    ("baton_batch_decode_tokens", "decode_tokens", "counter", "Tokens sampled, the first of each sequence included"),
    ("baton_batch_decode_steps", "decode_steps", "counter", "Engine steps with at least one decode row"),
    ("baton_prefix_cache_hits", "prefix_hits", "counter", "Sequences that began with another one's KV"),
    ("baton_prefix_cache_tokens", "prefix_tokens", "counter", "Prompt tokens that were not computed for it"),
    ("baton_graphs_failed", "graphs_failed", "counter", "Graphs that could not be compiled; slower ones serve"),
    ("baton_tool_calls_malformed", "malformed_calls", "counter", "Output that began like a tool call and is text"),
    ("baton_steps", "steps", "counter", "Engine steps, failed ones included"),
    ("baton_steps_failed", "steps_failed", "counter", "Engine steps that failed"),
)


@dataclass(frozen=True, slots=True)
class WorkerSample:
    """One worker at one scrape."""

    model: str
    backend: str
    worker: str
    counts: Callable[[str], int]
    slots_available: int
    queue_depth: int
    kv_tokens: int
    retained_tokens: int
    live: int
    ready: bool
    restarts: int
    standby: bool
    promotions: int
    circuit_open: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """The histograms of one worker, in seconds, and `ended`, its counter of ends by outcome."""

    first_token: Histogram
    inter_token: Histogram
    queue_wait: Histogram
    end_to_end: Histogram
    gap: Histogram
    ended: Callable[[str], Counter]


_HISTOGRAMS = (
    (
        "baton_time_to_first_token_seconds",
        "first_token",
        "From a request's receipt to the first token of a sequence",
    ),
    ("baton_inter_token_latency_seconds", "inter_token", "Between the tokens of one sequence"),
    ("baton_queue_wait_seconds", "queue_wait", "A sequence's wait for a slot, by the worker"),
    ("baton_request_seconds", "end_to_end", "From a request's receipt to the good end of a sequence"),
    (
        "baton_replay_gap_seconds",
        "gap",
        "Between the last token of a lost worker and the first of the one that goes on",
    ),
)


class Metrics:
    """The metrics of one gateway, in a registry of its own. At every scrape it calls `samples`, `waiting` (sequences
    without a worker, by model) and `refused` (what the links refused, by reason)."""

    def __init__(
        self,
        samples: Callable[[], Iterable[WorkerSample]],
        waiting: Callable[[], Mapping[str, int]],
        refused: Callable[[], Mapping[str, int]],
    ) -> None:
        self._registry = CollectorRegistry()
        self._observed: dict[tuple[str, str, str], Observed] = {}
        self._registry.register(_WorkerCollector(samples, waiting, refused, self._observed))
        self._ended = Counter("baton_sequences_ended", "Ends by outcome", [*LABELS, "outcome"], registry=self._registry)
        self._replays = Counter(
            "baton_replays",
            "Sequences that lost their worker, by cause and by how it went on",
            ["model", "cause", "outcome"],
            registry=self._registry,
        )
        self._detachments = Counter(
            "baton_stream_detachments",
            "Streams whose client's connection ended, by how that ended",
            ["model", "outcome"],
            registry=self._registry,
        )
        self._bodies = Gauge("baton_body_bytes", "Bytes of request bodies that are held", registry=self._registry)
        self._answers = Gauge(
            "baton_answer_bytes", "Bytes of answers that clients have yet to take", registry=self._registry
        )
        self._lag = Gauge(
            "baton_event_loop_lag_seconds",
            "Longest time since the last scrape for which the event loop kept a callback waiting",
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
            new = {field: Histogram(SECONDS) for _, field, _ in _HISTOGRAMS}
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

    def replayed(self, model: str, cause: str, outcome: str) -> Counter:
        """The counter of replays with this cause and outcome."""
        return self._replays.labels(model, cause, outcome)

    def detachment(self, model: str, outcome: str) -> Counter:
        """The counter of streams whose connection ended, by what became of them."""
        return self._detachments.labels(model, outcome)

    def http_response(self, route: str, status: int, reason: str) -> None:
        """Count a response. `reason` is the code of an error, or empty."""
        self._responses.labels(route, status, reason).inc()

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
        """Set the function that returns the longest lag of the event loop since its last call, which is a scrape."""
        self._lag.set_function(longest)

    def render(self) -> bytes:
        """All metrics in the text format, version 0.0.4."""
        return b"".join(self.families())

    def families(self) -> Iterator[bytes]:
        """The same by families, of which none takes long: those of 64 workers take 50 ms together."""
        for family in self._registry.collect():
            yield generate_latest(_Family(family))


class _Family(CollectorRegistry):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class _WorkerCollector(Collector):
    def __init__(
        self,
        samples: Callable[[], Iterable[WorkerSample]],
        waiting: Callable[[], Mapping[str, int]],
        refused: Callable[[], Mapping[str, int]],
        observed: Mapping[tuple[str, str, str], Observed],
    ) -> None:
        self._samples = samples
        self._waiting = waiting
        self._refused = refused
        self._observed = observed

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        samples = list(self._samples())
        for name, field, kind, text in _COUNTS:
            metric = Metric(name, text, kind)
            suffix = "_total" if kind == "counter" else ""
            for sample in samples:
                metric.add_sample(name + suffix, _labels(sample), sample.counts(field))
            yield metric
        yield _counter("baton_worker_restarts", "Restarts after a failure", samples, lambda s: s.restarts)
        yield _counter(
            "baton_worker_promotions", "Times that a standby was made active", samples, lambda s: s.promotions
        )
        yield _gauge("baton_slots_available", "Free slots of ready workers", samples, lambda s: s.slots_available)
        yield _gauge("baton_kv_tokens", "KV rows of live sequences", samples, lambda s: s.kv_tokens)
        yield _gauge("baton_kv_retained_tokens", "KV rows of ended sequences", samples, lambda s: s.retained_tokens)
        yield _gauge("baton_queue_depth", "Sequences that wait for a slot", samples, lambda s: s.queue_depth)
        yield _gauge("baton_live_sequences", "Sequences that the gateway has open", samples, lambda s: s.live)
        yield _gauge("baton_worker_ready", "1 when the worker takes requests", samples, lambda s: int(s.ready))
        yield _gauge("baton_worker_standby", "1 while the worker stands by", samples, lambda s: int(s.standby))
        yield _gauge("baton_worker_circuit_open", "1 while its requests fail", samples, lambda s: int(s.circuit_open))
        rooms = GaugeMetricFamily("baton_waiting_sequences", "Sequences that wait for a worker", labels=["model"])
        for model, count in self._waiting().items():
            rooms.add_metric([model], count)
        yield rooms
        refused = CounterMetricFamily("baton_link_refused", "What the links to workers refused", labels=["reason"])
        for reason, count in self._refused().items():
            refused.add_metric([reason], count)
        yield refused
        for name, field, text in _HISTOGRAMS:
            family = HistogramMetricFamily(name, text, labels=LABELS)
            for labels, observed in self._observed.items():
                histogram: Histogram = getattr(observed, field)
                if histogram.count:
                    family.add_metric(labels, histogram.buckets(), histogram.sum)
            yield family


def _labels(sample: WorkerSample) -> dict[str, str]:
    return {"model": sample.model, "backend": sample.backend, "worker": sample.worker}


def _counter(name: str, text: str, samples: list[WorkerSample], value: Callable[[WorkerSample], int]) -> Metric:
    metric = Metric(name, text, "counter")
    for sample in samples:
        metric.add_sample(f"{name}_total", _labels(sample), value(sample))
    return metric


def _gauge(name: str, text: str, samples: list[WorkerSample], value: Callable[[WorkerSample], int]) -> Metric:
    metric = GaugeMetricFamily(name, text, labels=LABELS)
    for sample in samples:
        metric.add_metric((sample.model, sample.backend, sample.worker), value(sample))
    return metric
