"""Deaths of real workers while they report a prompt, and after it: the answer is that of an undisturbed run."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from gateway.routing.sequence import LiveSequence
from tests.gateway.harness.real import Real, gather, launch, real_gateway
from tests.gateway.harness.serving import events

pytestmark = pytest.mark.anyio

PROMPT = "The prompt of a long request. " * 24
PROMPTS = (PROMPT, [*PROMPT.encode()])
FIELDS: dict[str, Any] = {"model": "tiny", "echo": True, "logprobs": 3, "temperature": 0, "max_tokens": 40, "seed": 1}
MOMENTS: dict[str, Callable[[LiveSequence], bool]] = {
    "in the prompt": lambda sequence: 0 < sequence.prompt_tokens < len(PROMPT),
    "after the prompt": lambda sequence: sequence.prompt_tokens == len(PROMPT) and not sequence.tokens,
    "in the answer": lambda sequence: len(sequence.tokens) > 10,
}


async def whole(real: Real, prompt: Any, **fields: Any) -> Any:
    response = await real.client.post("/v1/completions", json=FIELDS | {"prompt": prompt} | fields)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"], answer["usage"]["total_tokens"]


async def streamed(real: Real, prompt: Any) -> Any:
    """The choice of a stream, put together."""
    body = FIELDS | {"prompt": prompt, "stream": True}
    async with real.client.stream("POST", "/v1/completions", json=body) as response:
        *chunks, done = await events(response)
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    logprobs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    joined = {name: [each for part in logprobs for each in part[name]] for name in logprobs[0]}
    return "".join(choice["text"] for choice in choices), joined


async def scored(real: Real) -> Any:
    body = {"model": "tiny", "prompt": PROMPT[:300], "completion": PROMPT[300:]}
    response = await real.client.post("/v1/score", json=body)
    assert response.status_code == 200, response.text
    return response.json()["data"]


async def all_answers(real: Real) -> list[Any]:
    return await gather(
        *(lambda prompt=prompt: whole(real, prompt) for prompt in PROMPTS),
        *(lambda prompt=prompt: streamed(real, prompt) for prompt in PROMPTS),
        lambda: whole(real, PROMPT, max_tokens=0, prompt_logprobs=2, logprobs=None),
        lambda: scored(real),
    )


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
async def test_a_prompt_is_reported_once_whatever_worker_reports_it(moment: Callable[[LiveSequence], bool]) -> None:
    async with real_gateway(launch("a", rate=200.0, slots=8), launch("b", rate=200.0, slots=8)) as real:
        undisturbed = await all_answers(real)
        killed: list[int] = []

        def kill() -> None:
            handle = next(each for each in real.router.pool if any(map(moment, each.live.values())))
            assert handle.status.pid is not None
            killed.append(handle.status.pid)
            os.kill(handle.status.pid, signal.SIGKILL)

        def reached() -> bool:
            return any(moment(sequence) for handle in real.router.pool for sequence in handle.live.values())

        disturbed, _ = await gather(lambda: all_answers(real), lambda: real.until(reached, kill))
        assert len(killed) == 1
    assert disturbed == undisturbed
    (choice,), _ = undisturbed[0]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith(PROMPT)
    assert [len(logprobs[name]) for name in logprobs] == [len(PROMPT) + 40] * 4
    assert (logprobs["token_logprobs"][0], logprobs["text_offset"][-1]) == (None, len(PROMPT) + 39)
    assert undisturbed[2] == (choice["text"], logprobs)
