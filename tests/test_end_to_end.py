"""All of Baton with its built-in model: `baton serve`, HTTP and a real backend."""

import asyncio
import io
import json
import operator
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from cli.commands.chaos import run_own
from cli.config.settings import Settings
from models import builtin_path
from protocol.request import Limits, Sampling
from tests.cli.commands.test_serve import read_until, serving, url_of
from workers.engine.runner import NotFiniteError
from workers.local_model import LocalModel
from workers.process.spec import Backend, WorkerSpec

PROMPTS = (
    "The capital of France is",
    "2 + 3 =",
    "Once there was a",
    "A cat is an animal. " * 9,
    "The capital of Japan is Tokyo. " * 20 + "The capital of Italy is",
)


EXTRAS: tuple[dict[str, Any], ...] = (
    {},
    {"dry_multiplier": 2, "dry_allowed_length": 1, "dry_sequence_breakers": ["."]},
    {"typical_p": 0.8},
    {"bad_words": ["the", "is"]},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
)
"""Parameters of some requests; of `bodies`, the even ones are sampled and the odd ones greedy."""


@dataclass(frozen=True)
class Served:
    """A running server, and the local model that gives the expected answers."""

    backend: Backend
    url: str
    model: LocalModel


@pytest.fixture(scope="module", params=["iree", "mlx"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    backend: Backend = request.param
    pytest.importorskip({"iree": "iree.runtime", "mlx": "mlx.core"}[backend])
    words = ["-m", "cli", "serve", "--port", "0", "--backend", backend]
    spec = WorkerSpec("w", "m", str(builtin_path()), backend=backend)
    # The local model compiles the graphs of both before the deadline of the server starts.
    with LocalModel.open(spec) as model, serving(words) as process:
        yield Served(backend, url_of(read_until(process, "ready")), model)
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "worker_exited" in logged
        assert "worker_output" not in logged, "a worker wrote what is no log line, such as objects that are never freed"


def bodies(count: int) -> list[dict[str, Any]]:
    """Return requests, greedy and seeded, with five prompts and seven lengths."""
    return [
        {
            "model": "baton-tiny",
            "prompt": PROMPTS[number % len(PROMPTS)],
            "max_tokens": 3 + 5 * (number % 7),
            "temperature": 0.0 if number % 2 else 0.9,
            "top_p": 0.9 if number % 3 == 0 else 1.0,
            "seed": number,
            "ignore_eos": True,
            "return_token_ids": True,
            **EXTRAS[number % len(EXTRAS)],
        }
        for number in range(count)
    ]


async def send_all(url: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=url, timeout=100) as client:

        async def send(body: dict[str, Any]) -> dict[str, Any]:
            response = await client.post("/v1/completions", json=body)
            choice: dict[str, Any] = response.raise_for_status().json()["choices"][0]
            return choice

        return await asyncio.gather(*(send(body) for body in requests))


def assert_as_alone(served: Served, requests: list[dict[str, Any]], answers: list[dict[str, Any]]) -> None:
    """Check that each request got the tokens and the text that it gets alone."""
    for body, choice in zip(requests, answers, strict=True):
        given = {name: value for name, value in body.items() if name in Sampling.__struct_fields__}
        sampling = Sampling(**given | {"dry_breakers": tuple(body.get("dry_sequence_breakers", ()))})
        alone = served.model.generate(body["prompt"], sampling, Limits(body["max_tokens"], ignore_eos=True))
        assert tuple(choice["token_ids"]) == alone.tokens, body
        assert choice["text"] == alone.text
        assert choice["finish_reason"] == "length"


def test_concurrent_requests_get_what_each_gets_alone(served: Served) -> None:
    """There are several times as many requests as slots, which are eight."""
    requests = bodies({"iree": 32, "mlx": 20}[served.backend])  # MLX is slower here
    answers = asyncio.run(send_all(served.url, requests))
    assert_as_alone(served, requests, answers)


def test_open_parameters_are_those_of_the_checkpoint(served: Served) -> None:
    """The built-in model recommends greedy answers."""
    body = {"model": "baton-tiny", "prompt": PROMPTS[2], "max_tokens": 12, "return_token_ids": True}
    free, hot = asyncio.run(send_all(served.url, [body, body | {"temperature": 3, "seed": 1}]))
    greedy = served.model.generate(PROMPTS[2], Sampling(), Limits(12))
    assert tuple(free["token_ids"]) == greedy.tokens
    assert tuple(hot["token_ids"]) != greedy.tokens


def test_the_server_answers_what_generate_answers(served: Served) -> None:
    prompt = "The capital of France is"
    words = ["generate", "-p", prompt, "-n", "8", "--no-chat-template", "--backend", served.backend]
    printed = subprocess.run(
        [sys.executable, "-P", "-m", "cli", *words], capture_output=True, text=True, check=True, timeout=100
    ).stdout
    body = {"model": "baton-tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, timeout=60).json()
    assert printed == answer["choices"][0]["text"] + "\n"
    assert printed.startswith(" Paris")


def test_the_server_scores_what_score_prints(served: Served) -> None:
    """The log-likelihoods of a text, and of its end, are those of `baton score`, beside other requests."""
    prompt, completion = "The capital of France is", " Paris, and that of Japan is Tokyo."
    expected = served.model.score(prompt + completion)
    beside = bodies(6)

    async def ask() -> tuple[Any, Any, Any]:
        async with httpx.AsyncClient(base_url=served.url, timeout=100) as client:
            echo = {"model": "baton-tiny", "prompt": [*expected.tokens], "echo": True, "logprobs": 1, "max_tokens": 1}
            whole, end, echoed, _ = await asyncio.gather(
                client.post("/v1/score", json={"model": "baton-tiny", "prompt": prompt + completion}),
                client.post("/v1/score", json={"model": "baton-tiny", "prompt": prompt, "completion": completion}),
                client.post("/v1/completions", json=echo | {"temperature": 0, "seed": 1234}),
                send_all(served.url, beside),
            )
            return whole.json()["data"][0], end.json()["data"][0], echoed.json()["choices"][0]

    whole, end, echoed = asyncio.run(ask())
    assert tuple(whole["tokens"]) == expected.tokens[1:]
    assert whole["log_likelihoods"] == pytest.approx(expected.log_likelihoods, abs=2e-3)
    assert whole["total"] == pytest.approx(expected.total, abs=0.01)
    count = len(end["tokens"])
    assert 0 < count < len(expected.tokens)
    assert end["tokens"] == whole["tokens"][-count:]
    assert end["log_likelihoods"] == whole["log_likelihoods"][-count:]
    logprobs = echoed["logprobs"]
    assert logprobs["token_logprobs"] == [None, *whole["log_likelihoods"], logprobs["token_logprobs"][-1]]
    assert echoed["text"].startswith(prompt + completion)
    assert logprobs["text_offset"][-1] == len(prompt + completion)


def test_the_server_embeds_beside_other_requests(served: Served) -> None:
    """A text has the same vector alone and in a batch, and ranks are the cosines of vectors."""
    texts = [f"{prompt} {number}" for number, prompt in enumerate(PROMPTS * 2)][:8]

    async def ask() -> tuple[Any, Any, Any]:
        async with httpx.AsyncClient(base_url=served.url, timeout=100) as client:
            batch, one, ranks, _ = await asyncio.gather(
                client.post("/v1/embeddings", json={"model": "baton-tiny", "input": texts}),
                client.post("/v1/embeddings", json={"model": "baton-tiny", "input": texts[3]}),
                client.post("/rerank", json={"model": "baton-tiny", "query": texts[0], "documents": texts}),
                send_all(served.url, bodies(6)),
            )
            return batch.json()["data"], one.json()["data"], ranks.json()["results"]

    batch, one, ranks = asyncio.run(ask())
    vectors = [each["embedding"] for each in batch]
    assert one[0]["embedding"] == vectors[3]
    assert all(sum(number * number for number in vector) == pytest.approx(1, abs=1e-6) for vector in vectors)
    assert ranks[0]["index"] == 0
    for each in ranks:
        cosine = sum(map(operator.mul, vectors[0], vectors[each["index"]]))
        assert each["relevance_score"] == pytest.approx(cosine, abs=1e-6)


async def stream_all(url: str, requests: list[dict[str, Any]], kill_at: int) -> list[dict[str, Any]]:
    """Stream all requests, and kill the worker when one of them has `kill_at` tokens."""
    found: list[dict[str, Any]] = [{"text": "", "token_ids": [], "finish_reason": None} for _ in requests]
    killed = False
    async with httpx.AsyncClient(base_url=url, timeout=100) as client:

        async def read(body: dict[str, Any], choice: dict[str, Any]) -> None:
            nonlocal killed
            async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    (piece,) = json.loads(line.removeprefix("data: "))["choices"]
                    choice["text"] += piece["text"]
                    choice["token_ids"] += piece["token_ids"]
                    choice["finish_reason"] = piece["finish_reason"]
                    if len(choice["token_ids"]) >= kill_at and not killed:
                        killed = True
                        [worker] = (await client.get("/admin/workers")).json()["workers"]
                        os.kill(worker["pid"], signal.SIGKILL)

        await asyncio.gather(*(read(body, choice) for body, choice in zip(requests, found, strict=True)))
    assert killed
    return found


def test_the_example_of_tool_calls_prints_what_its_page_says(served: Served) -> None:
    page = (Path(__file__).parents[1] / "docs" / "tools.md").read_text()
    example = re.search(r"this prints `([^`]+)`:\n\n```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert example is not None
    code = example[2].replace("http://127.0.0.1:8000", served.url)
    assert code != example[2]
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert ended.stdout == example[1] + "\n"


def test_a_killed_worker_is_a_gap_in_its_streams_and_nothing_else(served: Served) -> None:
    """Eight run and four wait for a slot when the worker dies. The restarted worker resumes all of them."""
    requests = [body | {"max_tokens": 48} for body in bodies(12)]
    answers = asyncio.run(stream_all(served.url, requests, kill_at=20))
    assert_as_alone(served, requests, answers)


def test_non_finite_logits_are_a_gap_and_nothing_else(served: Served, tmp_path: Path) -> None:
    """With `baton chaos --own`, the worker detects them on the device in one of its first steps. In a step with drafts
    it would only compute the row again, without them."""
    console = Console(file=io.StringIO(), width=200)
    options: dict[str, Any] = {"faults": "nan", "streams": 2, "tokens": 20, "seconds": 0.1, "seed": 3}
    settings = Settings(backend=served.backend, speculate="off")
    clean = run_own(settings, log=tmp_path / "log", console=console, **options)
    assert clean, console.file.getvalue()  # type: ignore[attr-defined]
    assert str(NotFiniteError()) in (tmp_path / "log").read_text()


def test_the_next_turn_of_a_chat_goes_to_the_worker_of_the_first_one() -> None:
    """Both workers are busy to the same degree, so that the first one would get it without its prefix."""
    pytest.importorskip("iree.runtime")
    while (cached := cached_by_turn()) is None:
        pass  # the test's time limit ends attempts in vain
    prompt, first, second = cached
    assert first == 0
    assert second >= prompt - 16


def cached_by_turn() -> tuple[int, int, int] | None:
    """The tokens of the prompt of a chat's first turn, and those that came from a cache in its two turns. None if a
    worker was idle before the second one, as its stream had ended."""
    told = "Tell me about cats and dogs. " * 20
    with serving(["-m", "cli", "serve", "--port", "0", "--backend", "iree", "--workers", "2"]) as process:
        with httpx.Client(base_url=url_of(read_until(process, "ready")), timeout=100) as client:

            def by_worker(name: str) -> dict[str, float]:
                text = client.get("/metrics").text
                series = re.findall(rf'^{name}{{.*worker="(\w+)"}} (\S+)$', text, re.MULTILINE)
                return {worker: float(count) for worker, count in series}

            while by_worker("baton_worker_ready") != {"w0": 1.0, "w1": 1.0}:
                time.sleep(0.1)
            endless = {
                "model": "baton-tiny",
                "prompt": "On",
                "max_tokens": 2000,
                "ignore_eos": True,
                "stream": True,
                "n": 4,
            }
            chat = [{"role": "user", "content": told}]
            body = {"model": "baton-tiny", "max_tokens": 20, "ignore_eos": True, "messages": chat}
            with client.stream("POST", "/v1/completions", json=endless) as one:
                lines = one.iter_lines()  # it would end the stream when it is dropped
                next(lines)
                first = client.post("/v1/chat/completions", json=body).json()
                with client.stream("POST", "/v1/completions", json=endless) as two:
                    more = two.iter_lines()
                    next(more)
                    before = by_worker("baton_live_sequences")
                    chat += [first["choices"][0]["message"], {"role": "user", "content": "Go on."}]
                    second = client.post("/v1/chat/completions", json=body).json()
                    busy = before == by_worker("baton_live_sequences") == {"w0": 4.0, "w1": 4.0}
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    if not busy:
        return None
    one_turn, two_turns = (each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (first, second))
    return first["usage"]["prompt_tokens"], one_turn, two_turns
