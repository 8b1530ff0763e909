"""The gateway over real worker processes: the figures that users know, deaths, and disconnects."""

import os
import signal
from typing import Any

import anyio
import httpx
import pytest

from actors.supervision.worker import WorkerState
from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.gateway.harness.serving import CHAT, COMPLETION, events, open_raw
from tests.gateway.metrics.test_metrics import scrape
from workers.faults.plan import raising

pytestmark = pytest.mark.anyio

FOREVER = COMPLETION | {"max_tokens": 4000, "ignore_eos": True, "temperature": 0}


async def streamed(real: Real, body: dict[str, Any], began: anyio.Event | None = None) -> list[Any]:
    async with real.client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        assert response.status_code == 200
        if began is not None:
            began.set()
        return await events(response)


def ids(chunks: list[Any]) -> list[int]:
    """The token ids of a stream with one choice."""
    return [token for chunk in chunks[:-1] for choice in chunk["choices"] for token in choice["token_ids"]]


async def drained(real: Real) -> None:
    await real.until(lambda: real.status().gauges.slots_active == 0 and real.status().gauges.queue_depth == 0)


async def test_three_prompts_give_exactly_the_counts_that_users_know() -> None:
    prompts = [[1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13, 14]]
    body = COMPLETION | {"prompt": prompts, "max_tokens": 16, "ignore_eos": True, "return_token_ids": True}
    async with real_gateway(launch("w0", slots=4)) as real:
        answer = (await real.client.post("/v1/completions", json=body)).json()
        assert [len(choice["token_ids"]) for choice in answer["choices"]] == [16, 16, 16]
        assert answer["usage"] == {
            "prompt_tokens": 14,
            "completion_tokens": 48,
            "total_tokens": 62,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        await drained(real)
        seen = await scrape(real)
        (worker,) = (await real.client.get("/admin/workers")).json()["workers"]
    assert seen["baton_batch_sequences_started"] == 3
    assert seen["baton_batch_sequences_completed"] == 3
    assert seen["baton_batch_prefill_tokens_total"] == 14
    assert seen["baton_batch_decode_tokens_total"] == 48
    assert seen["baton_batch_decode_steps_total"] == 15
    assert seen["baton_slots_available"] == 4
    assert seen["baton_queue_depth"] == 0
    assert (worker["state"], worker["slots_total"], worker["slots_active"]) == ("ready", 4, 0)


async def test_a_repeated_prompt_is_not_computed_again_and_usage_reports_it() -> None:
    prompt = "You are a helpful assistant, and this is a prompt that many requests begin with. "
    body = COMPLETION | {"prompt": prompt + "One.", "max_tokens": 8, "ignore_eos": True, "seed": 3}
    async with real_gateway(launch("w0", slots=4)) as real:
        first = (await real.client.post("/v1/completions", json=body)).json()
        again = (await real.client.post("/v1/completions", json=body)).json()
        other = (await real.client.post("/v1/completions", json=body | {"prompt": prompt + "Two."})).json()
        salted = (await real.client.post("/v1/completions", json=body | {"cache_salt": "mine"})).json()
        chunks = await streamed(real, body | {"stream_options": {"include_usage": True}})
        bearer = {"authorization": "Bearer another"}
        other_key = (await real.client.post("/v1/completions", json=body, headers=bearer)).json()
        seen = await scrape(real)
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, again, other, chunks[-2])]
    # The third one takes the slot over, and a few rows of what was in it are lost to the fourth.
    assert cached == [0, len(prompt) + 3, len(prompt), len(prompt)]
    for apart in (salted, other_key):
        assert apart["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["choices"] == other_key["choices"] == salted["choices"] == first["choices"]
    assert other["choices"] != first["choices"]
    assert seen["baton_prefix_cache_hits_total"] == 3
    assert seen["baton_prefix_cache_tokens_total"] == sum(cached)
    assert seen["baton_kv_retained_tokens"] > 0
    assert seen["baton_slots_available"] == 4


async def test_streams_and_whole_answers_agree() -> None:
    async with real_gateway(launch("w0")) as real:
        body = COMPLETION | {"prompt": "abc", "n": 3, "seed": 7, "return_token_ids": True}
        whole = (await real.client.post("/v1/completions", json=body)).json()["choices"]
        chunks = await streamed(real, body)
        assert chunks.pop() == "[DONE]"
        for index in range(3):
            choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
            assert "".join(choice["text"] for choice in choices) == whole[index]["text"]
            ids = [token for choice in choices for token in choice["token_ids"]]
            assert ids == whole[index]["token_ids"]
        chat = await real.client.post("/v1/chat/completions", json=CHAT)
        assert chat.json()["usage"]["completion_tokens"] == 8


async def test_what_the_worker_refuses_is_a_400_that_names_the_field() -> None:
    async with real_gateway(launch("w0")) as real:
        response = await real.client.post("/v1/completions", json=COMPLETION | {"prompt": [1] * 5000})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert (await real.client.post("/v1/completions", json=COMPLETION)).status_code == 200


async def test_a_killed_worker_is_replaced_and_its_stream_continues() -> None:
    async with real_gateway(launch("a", rate=200), launch("b", rate=200)) as real:
        began = [anyio.Event(), anyio.Event()]
        body = FOREVER | {"max_tokens": 60, "return_token_ids": True}

        async def kill() -> None:
            for each in began:
                await each.wait()
            pid = real.status(0).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

        killed, other, _ = await gather(
            lambda: streamed(real, body, began[0]), lambda: streamed(real, body, began[1]), kill
        )
        assert ids(killed) == ids(other), "the prompts are the same"
        assert [chunks[-2]["choices"][0]["finish_reason"] for chunks in (killed, other)] == ["length", "length"]
        assert (await real.client.get("/health/ready")).status_code == 200
        await real.until(lambda: real.status(0).incarnation == 2 and real.status(0).state is WorkerState.READY)
        answers = await gather(*[lambda: real.client.post("/v1/completions", json=COMPLETION)] * 4)
        assert [answer.status_code for answer in answers] == [200] * 4
        first, second = (await real.client.get("/admin/workers")).json()["workers"]
        assert (first["incarnation"], second["incarnation"]) == (2, 1)
        seen = await scrape(real, "a")
        assert seen["baton_batch_decode_tokens_total"] > 8, "the dead incarnation's tokens still count"
        assert seen["baton_worker_restarts_total"] == 1


@pytest.mark.parametrize("wait_s", [0, 60], ids=["refuses", "waits"])
async def test_without_its_only_worker_the_gateway_is_not_ready(wait_s: float) -> None:
    async with real_gateway(launch("w0", rate=200, load_seconds=0.3), worker_wait_s=wait_s) as real:
        pid = real.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await real.until(lambda: real.status().state is not WorkerState.READY)
        assert (await real.client.get("/health/ready")).status_code == 503
        answer = await real.client.post("/v1/completions", json=COMPLETION)
        if wait_s:
            assert answer.status_code == 200
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
            assert "retry-after" in answer.headers
        assert (await real.client.get("/health/live")).status_code == 200
        await real.ready()
        assert (await real.client.post("/v1/completions", json=COMPLETION)).status_code == 200


async def test_a_failed_step_is_tried_again_and_harms_nothing_after() -> None:
    async with real_gateway(launch("w0", faults=raising((3, 8, 9)))) as real:
        assert (await real.client.post("/v1/completions", json=COMPLETION | {"max_tokens": 3})).status_code == 200
        failed = await real.client.post("/v1/completions", json=COMPLETION)
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "step_failed")
        assert (await real.client.post("/v1/completions", json=COMPLETION)).status_code == 200


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("phase", ["queued", "decoding"])
async def test_a_client_that_leaves_frees_its_slot_within_two_steps(phase: str, streaming: bool) -> None:
    """The tokens that are sampled after the client left bound the steps that its slot still took, which are so long
    that a busy machine is quicker than one of them."""
    rate = 4.0
    async with real_gateway(launch("w0", slots=1, rate=rate)) as real:
        first = await open_raw(real.port, "/v1/completions", FOREVER | {"stream": streaming})
        await real.until(lambda: real.status().gauges.slots_active == 1)
        if phase == "queued":
            second = await open_raw(real.port, "/v1/completions", FOREVER | {"stream": streaming})
            await real.until(lambda: real.status().gauges.queue_depth == 1)
            await second.aclose()
            await real.until(lambda: real.status().gauges.queue_depth == 0)
            assert real.status().gauges.slots_active == 1, "the one that runs goes on"
            assert real.status().gauges.sequences_started == 1
        (handle,) = real.router.pool
        delivered = next(iter(handle.live.values())).tokens
        before = len(delivered)
        await first.aclose()
        await drained(real)
        assert real.status().gauges.decode_tokens <= before + 4, "two steps, and one on its way each way"
        again = COMPLETION | {"max_tokens": 1}
        assert (await real.client.post("/v1/completions", json=again)).status_code == 200


async def test_a_client_that_leaves_during_prefill_frees_its_slot() -> None:
    prompt = [1] * 4000
    async with real_gateway(launch("w0", slots=1)) as real:
        stream = await open_raw(real.port, "/v1/completions", FOREVER | {"prompt": prompt, "max_tokens": 90})
        await real.until(lambda: real.status().gauges.prefill_tokens > 0 or real.status().gauges.slots_active == 1)
        await stream.aclose()
        await drained(real)
        assert (await real.client.post("/v1/completions", json=COMPLETION)).status_code == 200


async def test_the_request_id_and_deadline_reach_the_worker() -> None:
    async with real_gateway(launch("w0", rate=20), request_timeout_s=0.3) as real:
        response: httpx.Response = await real.client.post("/v1/completions", json=FOREVER)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "deadline_exceeded"
        await drained(real)
