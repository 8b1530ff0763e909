"""A request of a more urgent key takes the slot of another one, whose client sees a pause and nothing else."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.key_weights import Priority
from gateway.keys.record import KeyLimits, make_key, make_record
from tests.gateway.harness.real import Real, launch, real_gateway
from tests.gateway.harness.serving import COMPLETION, events

pytestmark = pytest.mark.anyio

LONG = COMPLETION | {
    "max_tokens": 200,
    "ignore_eos": True,
    "temperature": 0.9,
    "seed": 5,
    "stream": True,
    "logprobs": 2,
}


def keys(folder: Path) -> tuple[str, dict[str, dict[str, str]]]:
    """Write a file with a key of each class. Returns its path and the headers of each key."""
    made = {each: make_key() for each in Priority}
    path = folder / "keys"
    path.write_text(
        "".join(make_record(each, key, KeyLimits(priority=each)).line() + "\n" for each, key in made.items())
    )
    path.chmod(0o600)
    return str(path), {each: {"authorization": f"Bearer {key}"} for each, key in made.items()}


def joined(chunks: list[Any], index: int) -> tuple[str, list[Any]]:
    """Return the text of a choice, and the log-probabilities of its tokens; a chunk may have several tokens."""
    choices = [choice for chunk in chunks[:-1] for choice in chunk["choices"] if choice["index"] == index]
    reports = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    tokens = [pair for each in reports for pair in zip(each["tokens"], each["token_logprobs"], strict=True)]
    return "".join(choice["text"] for choice in choices), tokens


async def streamed(real: Real, headers: dict[str, str], into: list[Any], done: list[str], **fields: Any) -> None:
    async with real.client.stream("POST", "/v1/completions", json=LONG | fields, headers=headers) as response:
        assert response.status_code == 200
        into += await events(response)
    done.append(headers["authorization"])


@pytest.mark.parametrize("n", [1, 2])
async def test_a_preempted_stream_pauses_and_has_the_same_chunks(tmp_path: Path, n: int) -> None:
    file, headers = keys(tmp_path)
    alone: list[Any] = []
    disturbed: list[Any] = []
    urgent: list[Any] = []
    done: list[str] = []
    async with real_gateway(launch("w0", slots=n, rate=400.0), api_keys_file=file) as real:
        low, high = headers[Priority.LOW], headers[Priority.HIGH]
        await streamed(real, low, alone, done, n=n)
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: streamed(real, low, disturbed, done, n=n, cache_salt="other"))
            await real.until(lambda: any(each.tokens for handle in real.router.pool for each in handle.live.values()))
            await streamed(real, high, urgent, done, max_tokens=20, n=n)
        (handle,) = real.router.pool
    assert done[1:] == [high["authorization"], low["authorization"]], "the urgent one ends first"
    for index in range(n):
        assert joined(disturbed, index) == joined(alone, index)
        assert [len(joined(each, index)[1]) for each in (alone, urgent)] == [200, 20]
    assert handle.counters.total("preemptions") == n


async def test_the_wait_in_the_queue_of_a_worker_counts(tmp_path: Path) -> None:
    async with real_gateway(launch("w0", slots=1, rate=100.0)) as real, anyio.create_task_group() as group:
        group.start_soon(
            lambda: real.client.post("/v1/completions", json=COMPLETION | {"max_tokens": 100, "ignore_eos": True})
        )
        await real.until(lambda: real.status().gauges.slots_active == 1)
        answer = await real.client.post("/v1/completions", json=COMPLETION, headers={"x-max-queue-s": "0.2"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert "0.2 s in the queue" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) >= 1
