"""vLLM's series: the figures of ours, under the names and labels that vLLM has."""

import anyio
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from gateway.routing.worker_handle import Role
from gateway.settings import GatewaySettings, GatewaySettingsError
from protocol.events import Delta, Gauges, Step, Usage
from tests.gateway.harness.serving import COMPLETION, Served, serving

pytestmark = pytest.mark.anyio

LABELS = (("engine", "w0"), ("model_name", "tiny"))
OF_ALL = (("engine", "all"), ("model_name", "tiny"))


async def scrape(served: Served) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """vLLM's samples by name and labels, buckets left out."""
    text = (await served.client.get("/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vllm:") and "le" not in sample.labels
    }


async def test_there_are_none_unless_they_are_asked_for() -> None:
    async with serving() as served:
        assert await scrape(served) == {}


async def test_the_state_of_a_worker() -> None:
    async with serving(metrics_names="vllm") as served:
        worker = served.worker
        assert worker.status.ready is not None
        gauges = Gauges(queue_depth=1, kv_tokens=128, prefill_tokens=30, prefix_tokens=10, decode_tokens=7)
        gauges = replace(gauges, preemptions=2, drafts=3, draft_tokens=12, accepted_tokens=5)
        worker.say(Step((), gauges))
        worker.change(gauges=gauges, ready=replace(worker.status.ready, kv_capacity=512))
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                await served.client.post("/v1/completions", json=COMPLETION | {"n": 3})

            group.start_soon(ask)
            submits = await worker.wait_submits(3)
            seen = await scrape(served)
            for submit in submits:
                worker.finish(submit.stream, usage=Usage(1, 0))
    assert {name: value for (name, labels), value in seen.items() if labels == OF_ALL} == {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 1,
        "vllm:kv_cache_usage_perc": 0.25,
    }
    assert {name: value for (name, labels), value in seen.items() if labels == LABELS} == {
        "vllm:prefix_cache_queries_total": 40,
        "vllm:prefix_cache_hits_total": 10,
        "vllm:prompt_tokens_total": 40,
        "vllm:generation_tokens_total": 7,
        "vllm:num_preemptions_total": 2,
        "vllm:spec_decode_num_drafts_total": 3,
        "vllm:spec_decode_num_draft_tokens_total": 12,
        "vllm:spec_decode_num_accepted_tokens_total": 5,
    }
    config = (("block_size", "64"), *OF_ALL, ("num_gpu_blocks", "8"))
    assert seen["vllm:cache_config_info", config] == 1


async def test_the_gauges_of_a_model_are_those_of_all_its_workers() -> None:
    """llm-d reads the first series of a family, and no other."""
    async with serving("w0", "w1", "spare", metrics_names="vllm") as served:
        for worker, kv_tokens in zip(served.workers, (30, 50, 7), strict=True):
            assert worker.status.ready is not None
            gauges = Gauges(queue_depth=2, kv_tokens=kv_tokens)
            worker.change(gauges=gauges, ready=replace(worker.status.ready, kv_capacity=100))
        served.router.pool["spare"].role = Role.STANDBY
        seen = await scrape(served)
    assert seen["vllm:kv_cache_usage_perc", OF_ALL] == 0.4, "a standby has no part in it"
    assert seen["vllm:num_requests_waiting", OF_ALL] == 6
    assert seen["vllm:cache_config_info", (("block_size", "64"), *OF_ALL, ("num_gpu_blocks", "3"))] == 1
    for name in ("vllm:kv_cache_usage_perc", "vllm:num_requests_waiting", "vllm:num_requests_running"):
        assert [labels for found, labels in seen if found == name] == [OF_ALL]


async def test_an_unknown_capacity_is_no_use_of_the_cache() -> None:
    async with serving(metrics_names="vllm") as served:
        served.worker.change(gauges=Gauges(kv_tokens=128))
        assert (await scrape(served))["vllm:kv_cache_usage_perc", OF_ALL] == 0


async def test_the_ends_and_latencies_of_sequences() -> None:
    async with serving(metrics_names="vllm") as served:
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                await served.client.post("/v1/completions", json=COMPLETION | {"n": 2})

            group.start_soon(ask)
            first, second = await served.worker.wait_submits(2)
            for submit in (first, second):
                served.worker.say(Step((Delta(submit.stream, (1, 2), "ab"),)))
            usage = Usage(3, 2, queue_ms=500, prefill_ms=250, decode_ms=125)
            served.worker.finish(first.stream, reason="length", usage=usage)
            served.worker.finish(second.stream, reason="stop", usage=Usage(3, 2, queue_ms=500))
        seen = await scrape(served)
    sums = {name: value for (name, labels), value in seen.items() if labels == LABELS and name.endswith("_sum")}
    assert sums["vllm:request_queue_time_seconds_sum"] == 1.0
    assert sums["vllm:request_prefill_time_seconds_sum"] == 0.25
    assert sums["vllm:request_decode_time_seconds_sum"] == 0.125
    assert sums["vllm:request_time_per_output_token_seconds_sum"] == 0.125
    assert sums["vllm:request_prompt_tokens_sum"] == 6
    assert sums["vllm:request_generation_tokens_sum"] == 4
    assert seen["vllm:time_to_first_token_seconds_count", LABELS] == 2
    assert seen["vllm:e2e_request_latency_seconds_count", LABELS] == 2
    ends = {
        dict(labels)["finished_reason"]: value
        for (name, labels), value in seen.items()
        if name == "vllm:request_success_total"
    }
    assert ends == {"length": 1, "stop": 1}


async def test_sequences_that_wait_for_a_worker_are_waiting_requests() -> None:
    async with serving(metrics_names="vllm", worker_wait_s=30.0) as served:
        served.worker.die()
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                await served.client.post("/v1/completions", json=COMPLETION)

            group.start_soon(ask)
            waiting = ("vllm:num_requests_waiting", OF_ALL)
            with anyio.fail_after(10):
                while (await scrape(served)).get(waiting) != 1:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            served.worker.come_back()
            (submit,) = await served.worker.wait_submits(1)
            served.worker.finish(submit.stream, usage=Usage(1, 0))


def test_other_names_are_refused() -> None:
    with pytest.raises(GatewaySettingsError, match="metrics_names is 'sglang'; it must be baton or vllm"):
        GatewaySettings(metrics_names="sglang")  # type: ignore[arg-type]
