"""Deaths of workers that compute a part of a prompt: another one continues with the same part."""

import os
import signal
from typing import Any

import pytest

from gateway.fleet.launch import WorkerLaunch
from gateway.routing.sequence import LiveSequence
from protocol.events import Delta, StartedStream, Step
from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.gateway.harness.virtual import BACKEND
from tests.gateway.harness.world import World, last, number

pytestmark = pytest.mark.anyio
PROMPT = "The prompt of a long request. " * 24
FIELDS: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 40, "seed": 1}


@pytest.mark.parametrize("anyio_backend", [BACKEND], ids=["virtual"])
@pytest.mark.parametrize("kept", [(0, 32, 64, 80), ()], ids=["sparse", "dense"])
async def test_another_worker_is_told_what_the_first_one_has_kept(kept: tuple[int, ...]) -> None:
    world = World("a", "b")
    group, waiting = world.open(sparse_prefill=True, sparse_prefill_keep=0.25), world.open(sparse_prefill=True)
    first = last(world["a"]).limits if world["a"].submits[-1].limits.sparse_keep else world["a"].submits[0].limits
    assert (first.sparse_prefill, first.sparse_keep) == (True, 0.25)
    started = StartedStream(number(group), kept=kept)
    world["a"].say(Step((Delta(number(group), (5,), "x"),), world["a"].status.gauges, (started,)))
    world["a"].die()
    told = {submit.resume: submit.kept for submit in world["b"].submits if submit.limits.sparse_prefill}
    assert told[(5,)] == kept
    assert told.get(()) is None, "nothing is known of what has not begun"
    assert not waiting.ended


def sparse(name: str) -> WorkerLaunch:
    return launch(name, rate=200.0, draft_model="small", sparse_prefill_tokens=600)


async def answer(real: Real, **fields: Any) -> Any:
    response = await real.client.post("/v1/completions", json=FIELDS | fields)
    assert response.status_code == 200, response.text
    body = response.json()
    return body["choices"][0]["text"], body["usage"]["prompt_tokens_details"].get("sparse_kept_tokens")


async def test_the_answer_is_that_of_an_undisturbed_run() -> None:
    """Scored again or not: the one that has begun continues with what was kept, the other one is scored on the new
    worker."""

    def begun(sequence: LiveSequence) -> bool:
        return len(sequence.tokens) > 10

    async with real_gateway(sparse("a"), sparse("b")) as real:
        undisturbed = await gather(lambda: answer(real), lambda: answer(real, sparse_prefill=False))
        (text, kept), (dense, none) = undisturbed
        assert text != dense
        assert (kept, none) == (208, None), "of 23 chunks 7, the last one of 16 tokens"
        killed: list[int] = []

        def kill() -> None:
            handle = next(each for each in real.router.pool if any(map(begun, each.live.values())))
            assert handle.status.pid is not None
            killed.append(handle.status.pid)
            os.kill(handle.status.pid, signal.SIGKILL)

        def reached() -> bool:
            return any(begun(sequence) for handle in real.router.pool for sequence in handle.live.values())

        both = [lambda: answer(real), lambda: answer(real, sparse_prefill=False)]
        disturbed = await gather(*both, lambda: real.until(reached, kill))
        assert len(killed) == 1
        assert tuple(disturbed[:2]) == tuple(undisturbed)
        asked = {"sparse_prefill": True, "prompt_logprobs": 1}
        refused = await real.client.post("/v1/completions", json=FIELDS | asked)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "sparse_prefill"
        metrics = (await real.client.get("/metrics")).text
        assert "baton_sparse_prefill_prompts_total" in metrics
