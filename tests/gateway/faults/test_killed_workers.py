"""Deaths of real worker processes at chosen moments: eight streams each equal the run in which nothing happened."""

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from actors.supervision.deadlines import Deadlines
from gateway.routing.failure_attribution import MAX_TRIES
from tests.gateway.faults.panicking import POISON
from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.gateway.harness.serving import events
from tests.pids import pid_of
from workers.faults.plan import CallFault, Fault, LinkFault

pytestmark = pytest.mark.anyio

TOKENS = 60
PHASES: dict[str, Callable[[Real, int], bool]] = {
    "sent": lambda real, before: len(delivered(real)) > 0,
    "prefilling": lambda real, before: real.status().gauges.prefill_tokens > before,
    "decoding": lambda real, before: any(len(tokens) > 20 for tokens in delivered(real)),
    "nearly done": lambda real, before: any(len(tokens) > TOKENS - 5 for tokens in delivered(real)),
}
"""The moment of the kill; `before` is the number of tokens that the worker had prefilled before the requests came."""


EXTRAS: dict[int, dict[str, Any]] = {
    1: {"bad_words": ["q", "th", "e "], "presence_penalty": 0.5},
    2: {"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_penalty_last_n": 40, "dry_sequence_breakers": [" ", "re"]},
    3: {"stop_token_ids": [200], "ignore_eos": True, "include_stop_str_in_output": True, "stop": ["\n"]},
    5: {"dry_multiplier": 1, "dry_allowed_length": 1, "dry_sequence_breakers": [], "bad_words": ["a"]},
    7: {"typical_p": 0.9, "xtc_probability": 0.5, "min_tokens": 10},
}
"""Further fields of some of the requests."""


def delivered(real: Real) -> list[list[int]]:
    return [stream.tokens for handle in real.router.pool for stream in handle.live.values()]


def body(index: int) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": f"request {index} " * (1 + 6 * (index % 4)),
        "max_tokens": TOKENS,
        "temperature": index % 2,
        "seed": index,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **EXTRAS.get(index, {}),
    }


async def ask(real: Real, index: int) -> tuple[str, list[int], Any]:
    async with real.client.stream("POST", "/v1/completions", json=body(index)) as response:
        assert response.status_code == 200
        *chunks, usage, done = await events(response)
    assert done == "[DONE]"
    assert not usage["choices"], usage
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    ids = [token for choice in choices for token in choice["token_ids"]]
    return "".join(choice["text"] for choice in choices), ids, usage["usage"]["total_tokens"]


async def ask_all(real: Real) -> list[Any]:
    return await gather(*[functools.partial(ask, real, index) for index in range(8)])


@pytest.fixture(scope="module")
def whole() -> list[Any]:
    """Answers to the eight when nothing happens: made once for all tests, because they depend on the requests alone."""

    async def undisturbed() -> list[Any]:
        async with real_gateway(launch("w0", slots=8)) as real:
            return await ask_all(real)

    return anyio.run(undisturbed)


@pytest.mark.parametrize("phase", PHASES)
async def test_streams_go_on_with_the_restart(phase: str, whole: list[Any]) -> None:
    async with real_gateway(launch("w0", slots=4, rate=300)) as real:
        before = real.status().gauges.prefill_tokens

        async def kill() -> None:
            await real.until(
                lambda: PHASES[phase](real, before), lambda: os.kill(pid_of(real.status()), signal.SIGKILL)
            )

        again, _ = await gather(lambda: ask_all(real), kill)
        assert again == whole
        await real.until(lambda: real.status().incarnation == 2)


@pytest.mark.parametrize(
    "kind", ["kill", "abort", "hang", "stop", "drop_message", "garble_message", "oversize_message"]
)
async def test_streams_go_on_with_another_worker(kind: CallFault | LinkFault, whole: list[Any]) -> None:
    """Four each; one worker is gone in the middle of a step of its own, or one of its messages is."""
    fault = Fault(kind, call=30, incarnation=1)
    deadlines = Deadlines(stop=0.5, term=0.2, hang=2.0 if kind in ("hang", "stop") else 60.0)
    launches = launch("a", rate=300, faults=(fault,)), launch("b", rate=300)
    async with real_gateway(*launches, deadlines=deadlines) as real:
        assert await ask_all(real) == whole
        await real.until(lambda: real.status().incarnation == 2)


async def test_streams_with_a_draft_model_go_on_with_another_worker(whole: list[Any]) -> None:
    """The two workers draft by models of their own, which follow the resumed tokens."""
    fault = Fault("kill", call=20, incarnation=1)
    drafted: dict[str, Any] = {"rate": 300, "draft_model": "draft", "adapter": "/adapters/support"}
    launches = launch("a", **drafted, faults=(fault,)), launch("b", **drafted)
    async with real_gateway(*launches) as real:
        assert await ask_all(real) == whole
        await real.until(lambda: real.status().incarnation == 2)
        listed = (await real.client.get("/v1/models")).json()["data"]
        gauges = [handle.status.gauges for handle in real.router.pool]
    assert [(model["draft_model"], model["adapter"]) for model in listed] == [("draft", "support")]
    assert sum(each.accepted_tokens for each in gauges) > 20
    assert not sum(each.drafters_failed for each in gauges)


async def test_streams_with_a_recurrent_state_go_on_with_another_worker() -> None:
    """The other worker computes the state again, from its own snapshots of the prompts where it has some."""
    async with real_gateway(*(launch(name, rate=300, recurrent=True) for name in "ab")) as real:
        whole = await ask_all(real)

        async def kill() -> None:
            await real.until(
                lambda: PHASES["decoding"](real, 0), lambda: os.kill(pid_of(real.status()), signal.SIGKILL)
            )

        again, _ = await gather(lambda: ask_all(real), kill)
        assert again == whole
        await real.until(lambda: real.status().incarnation == 2)
        assert any(handle.status.gauges.state_cache_bytes for handle in real.router.pool)


async def ends_alone(real: Real, prompt: str = "die!") -> list[Any]:
    """Eight streams, and among them a request that ends every worker that computes it, which alone fails; what the
    others got."""
    bad = body(0) | {"prompt": prompt, "stream": False}
    del bad["stream_options"]

    async def ask_bad() -> Any:
        await real.until(lambda: len(delivered(real)) == 8)
        return await real.client.post("/v1/completions", json=bad)

    others: list[Any]
    others, answer = await gather(lambda: ask_all(real), ask_bad)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "quarantined")
    return others


def from_outside() -> pytest.MarkDecorator:
    return pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells who sent a SIGKILL")


@pytest.mark.parametrize(
    ("kind", "deaths"), [("abort", 2), pytest.param("kill", MAX_TRIES, marks=from_outside())], ids=["within", "outside"]
)
async def test_a_poison_request_ends_alone(kind: CallFault, deaths: int, whole: list[Any]) -> None:
    """It ends every worker that computes it, by itself or as by a watchdog that cannot stand it, where nothing in the
    worker has failed. Seven others share its worker."""
    poison = Fault(kind, calls=0, token=ord("!"))
    async with real_gateway(launch("w0", slots=8, rate=100, faults=(poison,))) as real:
        assert await ends_alone(real) == whole
        await real.until(lambda: real.status().restarts == deaths)


@from_outside()
async def test_kills_in_quick_succession_quarantine_no_request(whole: list[Any]) -> None:
    """Each as soon as the next life has got its requests, before any of them has got three tokens further."""
    async with real_gateway(launch("w0", slots=8, rate=100)) as real:

        async def kill(incarnation: int) -> None:
            await real.until(
                lambda: real.status().incarnation == incarnation and len(delivered(real)) == 8,
                lambda: os.kill(pid_of(real.status()), signal.SIGKILL),
            )
            await real.until(lambda: real.status().incarnation > incarnation)

        async def kill_each() -> None:
            for incarnation in range(1, MAX_TRIES):
                await kill(incarnation)

        again, _ = await gather(lambda: ask_all(real), kill_each)
        assert again == whole
        assert real.status().restarts == MAX_TRIES - 1


async def test_poison_requests_one_after_the_other_take_no_model_down(whole: list[Any]) -> None:
    """Each ends its worker twice, and five deaths that count would be the end of it. The third time it ends nobody."""
    poison = Fault("abort", calls=0, token=ord("!"))
    prompts = [*[f"die {number}!" for number in range(5)], "die 0!"]
    async with real_gateway(launch("w0", slots=8, rate=100, faults=(poison,))) as real:

        async def ask_bad(prompt: str) -> tuple[int, str]:
            answer = await real.client.post("/v1/completions", json={"model": "tiny", "prompt": prompt})
            return answer.status_code, answer.json()["error"]["code"]

        async def poison_it() -> list[Any]:
            await real.until(lambda: len(delivered(real)) == 8)
            return [await ask_bad(prompt) for prompt in prompts]

        again, answers = await gather(lambda: ask_all(real), poison_it)
        assert again == whole
        assert answers == [(500, "quarantined")] * len(prompts)
        assert await ask_all(real) == whole
        assert (await real.client.get("/health/ready")).status_code == 200
        deaths = real.status().restarts
        assert deaths == 2 * len(prompts)
        assert await ask_bad("die 0!") == (500, "quarantined")
        assert real.status().restarts == deaths


async def test_a_request_that_fails_the_workers_loop_ends_alone(whole: list[Any]) -> None:
    """Its text cannot be made, in a way that ends the worker with last words; it goes through two of them, not more."""
    launches = [launch(name, slots=8, rate=100, program="tests.gateway.faults.panicking") for name in "ab"]
    async with real_gateway(*launches) as real:
        assert await ends_alone(real, f"die{POISON}") == whole
        # The others may have ended with one of the two before the other one is started again.
        await real.until(lambda: sum(worker.status.restarts for worker in real.workers) == 2)
        await real.ready()
        assert sum(worker.status.restarts for worker in real.workers) == 2
