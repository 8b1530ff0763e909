"""Metrics as Prometheus sees them; no counter ever decreases."""

from functools import partial
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.routing.counters import COUNTED, Counters
from protocol.events import Delta, Gauges, Step, Usage
from tests.gateway.harness.real import Real, launch, real_gateway
from tests.gateway.harness.serving import COMPLETION, Served, serving
from workers.process.backends import SCRIPTED_CONTEXT

LABELS = {"model": "tiny", "backend": "scripted", "worker": "w0"}
OF_NO_WORKER = {
    "baton_waiting_sequences",
    "baton_resumable_streams",
    "baton_stream_detachments",
    "baton_link_refused_total",
    "baton_limits_shared",
    "baton_streams_resumable_anywhere",
    "baton_body_bytes",
    "baton_answer_bytes",
    "baton_event_loop_lag_seconds",
    "baton_connections",
    "baton_connections_refused_total",
    "baton_connections_refused_created",
}


async def scrape(served: Served | Real, worker: str = "w0") -> dict[str, float]:
    """Samples of one worker, buckets left out."""
    response = await served.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
        if sample.labels.get("worker") == worker and "le" not in sample.labels and "outcome" not in sample.labels
    }


def full(value: int) -> Gauges:
    return Gauges(**dict.fromkeys(COUNTED, value))


def test_counts_add_up_over_incarnations() -> None:
    counters = Counters()
    for incarnation, value, total in [(1, 5, 5), (1, 7, 7), (1, 6, 7), (2, 0, 7), (2, 3, 10), (1, 9, 10), (4, 1, 11)]:
        counters.add(incarnation, full(value))
        assert {counters.total(name) for name in COUNTED} == {total}


@pytest.mark.anyio
async def test_counts_stay_monotone_when_a_worker_restarts() -> None:
    async with serving() as served:
        worker = served.worker
        worker.say(Step((), Gauges(slots_active=3, queue_depth=2, decode_tokens=40, sequences_started=3)))
        worker.change(gauges=Gauges(slots_active=3, queue_depth=2, decode_tokens=40, sequences_started=3))
        before = await scrape(served)
        assert before["baton_batch_decode_tokens_total"] == 40
        assert before["baton_batch_sequences_started"] == 3
        assert (before["baton_slots_available"], before["baton_queue_depth"]) == (1, 2)
        worker.say(Step((), Gauges(decode_tokens=41, sequences_started=3)))
        worker.die()
        assert (await scrape(served))["baton_slots_available"] == 0
        worker.come_back()
        worker.say(Step((), Gauges(decode_tokens=2)))
        after = await scrape(served)
        assert after["baton_batch_decode_tokens_total"] == 43, "the last step before the death counts"
        assert after["baton_batch_sequences_started"] == 3
        assert after["baton_worker_restarts_total"] == 1
        assert (after["baton_slots_available"], after["baton_queue_depth"]) == (4, 0)


@pytest.mark.anyio
async def test_what_clients_feel_is_observed_once_each() -> None:
    async with serving() as served:
        async with anyio.create_task_group() as group:
            got: list[Any] = []

            async def ask() -> None:
                got.append(await served.client.post("/v1/completions", json=COMPLETION | {"n": 2}))

            group.start_soon(ask)
            first, second = await served.worker.wait_submits(2)
            assert (await scrape(served))["baton_live_sequences"] == 2
            served.worker.say(Step((Delta(first.stream, (1,), "a"),)))
            served.worker.say(Step((Delta(first.stream, (2,), "b"), Delta(second.stream, (1, 2), "ab"))))
            served.worker.finish(first.stream, usage=Usage(1, 2, queue_ms=250))
            served.worker.finish(second.stream, usage=Usage(1, 2, queue_ms=250))
        seen = await scrape(served)
    assert seen["baton_time_to_first_token_seconds_count"] == 2
    assert seen["baton_inter_token_latency_seconds_count"] == 1
    assert seen["baton_queue_wait_seconds_count"] == 2
    assert seen["baton_queue_wait_seconds_sum"] == 0.5
    assert seen["baton_request_seconds_count"] == 2
    assert seen["baton_live_sequences"] == 0


@pytest.mark.anyio
async def test_every_series_of_a_worker_has_its_labels() -> None:
    async with serving() as served:
        text = (await served.client.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.name for sample in samples} >= {
        "baton_batch_sequences_started",
        "baton_batch_sequences_completed",
        "baton_batch_prefill_tokens_total",
        "baton_batch_decode_tokens_total",
        "baton_batch_decode_steps_total",
        "baton_slots_available",
        "baton_queue_depth",
    }
    ours = [each for each in samples if each.name.startswith("baton_") and each.name not in OF_NO_WORKER]
    assert all(LABELS.items() <= sample.labels.items() for sample in ours)


@pytest.mark.anyio
async def test_the_lengths_and_times_of_sequences_are_observed() -> None:
    async with serving() as served:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(served.client.post, "/v1/completions", json=COMPLETION | {"n": 2}))
            first, second = await served.worker.wait_submits(2)
            for submit, usage in (
                (first, Usage(7, 5, prefill_ms=250, decode_ms=1000)),
                (second, Usage(7, 1, prefill_ms=250)),
            ):
                tokens = tuple(range(usage.completion_tokens))
                served.worker.say(Step((Delta(submit.stream, tokens, "a"),)))
                served.worker.finish(submit.stream, usage=usage)
        seen = await scrape(served)
    assert (seen["baton_prompt_tokens_count"], seen["baton_prompt_tokens_sum"]) == (2, 14)
    assert (seen["baton_completion_tokens_count"], seen["baton_completion_tokens_sum"]) == (2, 6)
    assert seen["baton_prefill_seconds_sum"] == 0.5
    assert seen["baton_decode_seconds_sum"] == 1.0
    single = "baton_time_per_output_token_seconds"
    assert (seen[f"{single}_count"], seen[f"{single}_sum"]) == (1, 0.25), "one token alone has no time between tokens"


@pytest.mark.anyio
async def test_a_real_worker_reports_its_memory_and_the_size_of_its_cache() -> None:
    async with real_gateway(launch("a", slots=3)) as real:
        (worker,) = real.workers
        await real.until(lambda: worker.status.gauges.memory_bytes > 0)
        seen = await scrape(real, "a")
    assert seen["baton_kv_capacity_tokens"] == 3 * SCRIPTED_CONTEXT
    assert 10 << 20 < seen["baton_worker_memory_bytes"] < 1 << 30


def test_every_gauge_is_summed_over_incarnations_unless_it_may_fall() -> None:
    """`reached` and `slowest_step_ms` mean something within one incarnation only."""
    now = {"slots_active", "queue_depth", "kv_tokens", "retained_tokens", "reached", "slowest_step_ms", "memory_bytes"}
    now |= {"others", "stored_bytes", "state_cache_bytes", "image_cache_bytes"}
    assert set(Gauges.__struct_fields__) - now == set(COUNTED)
