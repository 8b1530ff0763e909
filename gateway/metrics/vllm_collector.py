"""The same figures under vLLM's names (vllm/v1/metrics/loggers.py), for what was made for vLLM.

Dashboards, benchmarks and the endpoint picker of llm-d query these names. Of vLLM's series some are left out;
`gateway.metrics.adapter_collector` has that of LoRA adapters.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.metrics.samples import ObservedByWorker, Samples, Waiting, WorkerSample
from gateway.metrics.worker_collector import histogram_family

LABELS = ("model_name", "engine")
"""The served name of the model, and the worker, where vLLM has the number of its engine."""
ALL_WORKERS = "all"
"""The `engine` of gauges. They have one series for a model: the endpoint picker reads only the first one."""
BLOCK_TOKENS = 64
"""Rows that count as one block of the cache. Prefixes are shared row by row; this is the smallest block in which llm-d
counts, and it takes the number of blocks for the number that a server can keep."""
REASONS = {"stop": "stop", "length": "length", "cancelled": "abort"}
"""vLLM's `finished_reason` by our outcome; every other outcome is an `error`."""


class _VllmCounter(NamedTuple):
    name: str
    help: str
    value: Callable[[WorkerSample], float]


COUNTERS = (
    _VllmCounter(
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache",
        lambda s: s.counts("prefill_tokens") + s.counts("prefix_tokens"),
    ),
    _VllmCounter(
        "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", lambda s: s.counts("prefix_tokens")
    ),
    _VllmCounter(
        "vllm:prompt_tokens",
        "Prompt tokens, cached ones included",
        lambda s: s.counts("prefill_tokens") + s.counts("prefix_tokens"),
    ),
    _VllmCounter("vllm:generation_tokens", "Generated tokens", lambda s: s.counts("decode_tokens")),
    _VllmCounter("vllm:num_preemptions", "Preemptions of sequences", lambda s: s.counts("preemptions")),
    _VllmCounter("vllm:spec_decode_num_drafts", "Verified drafts", lambda s: s.counts("drafts")),
    _VllmCounter("vllm:spec_decode_num_draft_tokens", "Tokens of verified drafts", lambda s: s.counts("draft_tokens")),
    _VllmCounter("vllm:spec_decode_num_accepted_tokens", "Accepted tokens", lambda s: s.counts("accepted_tokens")),
)
HISTOGRAMS = (
    # (name, field of `Observed`, help)
    ("vllm:time_to_first_token_seconds", "first_token", "Time to first token"),
    ("vllm:inter_token_latency_seconds", "inter_token", "Time between tokens"),
    ("vllm:request_time_per_output_token_seconds", "output_token", "Mean time between a sequence's tokens"),
    ("vllm:e2e_request_latency_seconds", "end_to_end", "Time from receipt to end"),
    ("vllm:request_queue_time_seconds", "queue_wait", "Time in the queues of the gateway and of the worker"),
    ("vllm:request_prefill_time_seconds", "prefill", "Time from the slot to the first token"),
    ("vllm:request_decode_time_seconds", "decode", "Time from the first to the last token"),
    ("vllm:request_prompt_tokens", "prompt_tokens", "Prompt tokens of a sequence"),
    ("vllm:request_generation_tokens", "completion_tokens", "Generated tokens of a sequence"),
)


class VllmCollector(Collector):
    """Collects the families. `ended` counts the ends of sequences, with the labels of a worker and `outcome`."""

    def __init__(self, samples: Samples, waiting: Waiting, observed: ObservedByWorker, ended: Counter) -> None:
        self._samples = samples
        self._waiting = waiting
        self._observed = observed
        self._ended = ended

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        samples = list(self._samples())
        yield from _gauges(samples, self._waiting())
        for name, text, value in COUNTERS:
            family = CounterMetricFamily(name, text, labels=LABELS)
            for sample in samples:
                family.add_metric((sample.model, sample.worker), value(sample))
            yield family
        for name, field, text in HISTOGRAMS:
            observed = (((model, worker), one) for (model, _, worker), one in self._observed.items())
            yield histogram_family(name, text, field, LABELS, observed)
        yield self._successes()

    def _successes(self) -> Metric:
        family = CounterMetricFamily(
            "vllm:request_success", "Ended sequences by reason", labels=[*LABELS, "finished_reason"]
        )
        ends: dict[tuple[str, str, str], float] = {}
        for metric in self._ended.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    reason = REASONS.get(sample.labels["outcome"], "error")
                    key = (sample.labels["model"], sample.labels["worker"], reason)
                    ends[key] = ends.get(key, 0.0) + sample.value
        for labels, count in ends.items():
            family.add_metric(labels, count)
        return family


def _gauges(samples: Iterable[WorkerSample], waiting: Mapping[str, int]) -> Iterator[Metric]:
    """The state of each model. Its cache is that of its active workers."""
    running = GaugeMetricFamily("vllm:num_requests_running", "Sequences that have a slot", labels=LABELS)
    queued = GaugeMetricFamily("vllm:num_requests_waiting", "Sequences that wait for a slot or a worker", labels=LABELS)
    usage = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Used part of the KV cache, 0 to 1", labels=LABELS)
    config = GaugeMetricFamily(
        "vllm:cache_config_info", "Size of the KV cache", labels=[*LABELS, "block_size", "num_gpu_blocks"]
    )
    by_model: dict[str, list[WorkerSample]] = {}
    for sample in samples:
        by_model.setdefault(sample.model, []).append(sample)
    for model, workers in by_model.items():
        labels = (model, ALL_WORKERS)
        active = [each for each in workers if not each.standby]
        rows, capacity = sum(each.kv_tokens for each in active), sum(each.kv_capacity for each in active)
        running.add_metric(labels, sum(max(0, each.live - each.queue_depth) for each in workers))
        queued.add_metric(labels, waiting.get(model, 0) + sum(each.queue_depth for each in workers))
        usage.add_metric(labels, rows / capacity if capacity else 0.0)
        config.add_metric((*labels, str(BLOCK_TOKENS), str(capacity // BLOCK_TOKENS)), 1)
    yield from (running, queued, usage, config)
