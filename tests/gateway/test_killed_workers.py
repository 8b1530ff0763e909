"""kill -9 of real worker processes at chosen moments: eight streams each equal the run in which nothing happened."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.real import Real, gather, launch, real_gateway
from tests.gateway.serving import events

pytestmark = pytest.mark.anyio

TOKENS = 60
PHASES: dict[str, Callable[[Real, int], bool]] = {
    "sent": lambda real, before: len(delivered(real)) > 0,
    "prefilling": lambda real, before: real.status().gauges.prefill_tokens > before,
    "decoding": lambda real, before: any(len(tokens) > 20 for tokens in delivered(real)),
    "nearly done": lambda real, before: any(len(tokens) > TOKENS - 5 for tokens in delivered(real)),
}
"""When the worker is killed; `before` is how many tokens it had prefilled before the requests came."""


def delivered(real: Real) -> list[list[int]]:
    return [stream.tokens for seat in real.router.seats() for stream in seat.live.values()]


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
    return await gather(*[lambda index=index: ask(real, index) for index in range(8)])  # type: ignore[misc]


@pytest.mark.parametrize("workers", [1, 2], ids=["restarts", "another takes over"])
@pytest.mark.parametrize("phase", PHASES)
async def test_eight_streams_equal_the_undisturbed_ones(phase: str, workers: int) -> None:
    launches = [launch(f"w{number}", slots=4, rate=300) for number in range(workers)]
    async with real_gateway(*launches) as real:
        whole = await ask_all(real)
        before = real.status().gauges.prefill_tokens

        async def kill() -> None:
            await real.until(lambda: PHASES[phase](real, before))
            os.kill(real.status().pid or 0, signal.SIGKILL)

        again, _ = await gather(lambda: ask_all(real), kill)
        assert again == whole
        await real.until(lambda: real.status().incarnation == 2)
