"""The metrics of workers: their counters, gauges and histograms."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics.families import Families
from gateway.metrics.histogram import Histogram
from gateway.metrics.samples import Observed, ObservedByWorker, Samples, Waiting, WorkerSample

LABELS = ("model", "backend", "worker")
TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

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
    ("baton_prefix_tier_hits", "stored_hits", "counter", "Sequences that took KV from the prefix tier"),
    ("baton_prefix_tier_tokens", "stored_tokens", "counter", "Prompt tokens whose KV came from the prefix tier"),
    ("baton_prefix_tier_failures", "stored_failures", "counter", "Blocks that were not written, or were damaged"),
    ("baton_state_cache_hits", "state_cache_hits", "counter", "Sequences that began with a kept recurrent state"),
    ("baton_state_cache_evictions", "state_cache_evictions", "counter", "Kept recurrent states dropped for others"),
    ("baton_preemptions", "preemptions", "counter", "Times that a sequence gave its slot or room to another one"),
    ("baton_spec_decode_num_drafts", "drafts", "counter", "Drafts of tokens that a step verified"),
    ("baton_spec_decode_num_draft_tokens", "draft_tokens", "counter", "Drafted tokens that were verified"),
    ("baton_spec_decode_num_accepted_tokens", "accepted_tokens", "counter", "Drafted tokens that were accepted"),
    ("baton_spec_decode_drafters_failed", "drafters_failed", "counter", "Draft models that have failed"),
    ("baton_sparse_prefill_prompts", "sparse_prompts", "counter", "Prompts of which a part was left out"),
    ("baton_sparse_prefill_kept_tokens", "sparse_kept_tokens", "counter", "Tokens of these prompts that were computed"),
    ("baton_sparse_prefill_left_out_tokens", "sparse_left_out_tokens", "counter", "Tokens of them that were left out"),
    ("baton_sparse_prefill_dense_prompts", "sparse_dense_prompts", "counter", "Prompts computed whole all the same"),
    ("baton_images_encoded", "images_encoded", "counter", "Images that the vision tower has computed"),
    ("baton_image_cache_hits", "image_cache_hits", "counter", "Images computed for another prompt, and not again"),
    ("baton_image_encode_milliseconds", "image_encode_ms", "counter", "Milliseconds that the vision tower took"),
    ("baton_graphs_failed", "graphs_failed", "counter", "Graphs that could not be compiled; slower ones serve"),
    ("baton_tool_calls_malformed", "malformed_calls", "counter", "Output that began like a tool call and is text"),
    ("baton_steps", "steps", "counter", "Engine steps, failed ones included"),
    ("baton_steps_failed", "steps_failed", "counter", "Engine steps that failed"),
)


HISTOGRAMS = (
    # (name, field of `Observed`, bounds, help)
    (
        "baton_time_to_first_token_seconds",
        "first_token",
        SECONDS,
        "From a request's receipt to the first token of a sequence",
    ),
    ("baton_inter_token_latency_seconds", "inter_token", SECONDS, "Between the tokens of one sequence"),
    ("baton_queue_wait_seconds", "queue_wait", SECONDS, "A sequence's wait for its first worker, and there for a slot"),
    ("baton_prefill_seconds", "prefill", SECONDS, "From the slot to the first token of a sequence, by the worker"),
    ("baton_decode_seconds", "decode", SECONDS, "From the first to the last token of a sequence, by the worker"),
    ("baton_time_per_output_token_seconds", "output_token", SECONDS, "Mean time between a sequence's tokens"),
    ("baton_request_seconds", "end_to_end", SECONDS, "From a request's receipt to the good end of a sequence"),
    (
        "baton_replay_gap_seconds",
        "gap",
        SECONDS,
        "Between the last token of a lost worker and the first of the one that goes on",
    ),
    ("baton_prompt_tokens", "prompt_tokens", TOKENS, "Prompt tokens of a sequence"),
    ("baton_completion_tokens", "completion_tokens", TOKENS, "Generated tokens of a sequence"),
)


class WorkerCollector(Collector):
    """Collects the families of workers; see `Metrics` for the arguments."""

    def __init__(
        self, samples: Samples, waiting: Waiting, refused: Callable[[], Mapping[str, int]], observed: ObservedByWorker
    ) -> None:
        self._samples = samples
        self._waiting = waiting
        self._refused = refused
        self._observed = observed

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        samples = list(self._samples())
        families = Families(samples, LABELS, lambda sample: (sample.model, sample.backend, sample.worker))
        for name, field, kind, text in _COUNTS:
            metric = Metric(name, text, kind)
            suffix = "_total" if kind == "counter" else ""
            for sample in samples:
                metric.add_sample(name + suffix, _labels(sample), sample.counts(field))
            yield metric
        yield families.counter("baton_worker_restarts", "Restarts after a failure", lambda s: s.restarts)
        yield families.counter(
            "baton_worker_promotions", "Times that a standby was made active", lambda s: s.promotions
        )
        yield families.gauge("baton_slots_available", "Free slots of ready workers", lambda s: s.slots_available)
        yield families.gauge("baton_kv_tokens", "KV rows of live sequences", lambda s: s.kv_tokens)
        yield families.gauge("baton_kv_capacity_tokens", "KV rows that sequences can have", lambda s: s.kv_capacity)
        yield families.gauge("baton_kv_retained_tokens", "KV rows of ended sequences", lambda s: s.retained_tokens)
        yield families.gauge("baton_prefix_tier_bytes", "Bytes of the machine's prefix tier", lambda s: s.stored_bytes)
        yield families.gauge("baton_state_cache_bytes", "Bytes of kept recurrent states", lambda s: s.state_cache_bytes)
        yield families.gauge("baton_image_cache_bytes", "Bytes of kept image rows", lambda s: s.image_cache_bytes)
        yield families.gauge(
            "baton_prefix_digests", "Digests of prefixes that the worker is known to hold", lambda s: s.prefix_digests
        )
        yield families.gauge("baton_worker_memory_bytes", "Resident memory of the worker", lambda s: s.memory_bytes)
        yield families.gauge("baton_queue_depth", "Sequences that wait for a slot", lambda s: s.queue_depth)
        yield families.gauge(
            "baton_live_sequences", "Sequences that the gateway has given to the worker", lambda s: s.live
        )
        yield families.gauge("baton_worker_ready", "1 when the worker takes requests", lambda s: int(s.ready))
        yield families.gauge("baton_worker_standby", "1 while the worker stands by", lambda s: int(s.standby))
        phases = GaugeMetricFamily("baton_worker_phases", "1, with the worker's --role", labels=(*LABELS, "phases"))
        for sample in samples:
            phases.add_metric([*_labels(sample).values(), sample.phases], 1)
        yield phases
        yield families.gauge("baton_worker_circuit_open", "1 while its requests fail", lambda s: int(s.circuit_open))
        rooms = GaugeMetricFamily("baton_waiting_sequences", "Sequences in the queue of the gateway", labels=["model"])
        for model, count in self._waiting().items():
            rooms.add_metric([model], count)
        yield rooms
        refused = CounterMetricFamily("baton_link_refused", "What the links to workers refused", labels=["reason"])
        for reason, count in self._refused().items():
            refused.add_metric([reason], count)
        yield refused
        for name, field, _, text in HISTOGRAMS:
            yield histogram_family(name, text, field, LABELS, self._observed.items())


def histogram_family(
    name: str, text: str, field: str, labels: Sequence[str], observed: Iterable[tuple[Sequence[str], Observed]]
) -> HistogramMetricFamily:
    """One histogram of all workers that have observed something, by the values of `labels`."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, one in observed:
        histogram: Histogram = getattr(one, field)
        if histogram.count:
            family.add_metric(values, histogram.buckets(), histogram.sum)
    return family


def _labels(sample: WorkerSample) -> dict[str, str]:
    return {"model": sample.model, "backend": sample.backend, "worker": sample.worker}
