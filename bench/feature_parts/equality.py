"""Compares answers with speculation, the prefix tier and killed workers with those of a plain server."""

import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.harness.served import READY_TIMEOUT_S, Served, served
from bench.harness.words import WORDS
from bench.soak_test.request_mix import deterministic, requests
from cli.chaos.http_client import ClientRequest, send
from cli.chaos.transcript import Transcript

WORKER_WAIT_S = 300.0
"""Seconds for which a request waits for a worker: longer than one takes to start beside everything else."""
AT_ONCE = 8
"""Requests at the same time."""
KILL_EVERY = 25
"""Answers between two kills. A request that four killed workers ran is not tried again, as everywhere."""
SYSTEMS = 8
"""System prompts. Requests with the same one share a prefix, also after the worker that computed it was killed."""
TIER_BYTES = 256 << 20
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "quantity": {"type": "integer"},
        "available": {"type": "boolean"},
    },
    "required": ["name", "quantity", "available"],
    "additionalProperties": False,
}


def mixed_requests(rng: random.Random, count: int, *, longest: int, tokens: int, system: int) -> list[ClientRequest]:
    """Different requests whose answers are the same each time.

    They are those of the soak test that are greedy or seeded. A third begin with one of `SYSTEMS` system prompts of
    `system` words, a fifth quote their prompt's words again, and a tenth of the chats must answer with an object of
    JSON, whose keys a grammar forces.
    """
    shared = [" ".join(rng.choices(WORDS, k=system)) for _ in range(SYSTEMS)]
    found: dict[str, ClientRequest] = {}
    while len(found) < count:
        for request in requests(rng, count, longest=longest, tokens=tokens):
            if deterministic(request):
                changed = _with_features(rng, request, shared)
                found.setdefault(repr(changed), changed)
    return list(found.values())[:count]


def _with_features(rng: random.Random, request: ClientRequest, shared: Sequence[str]) -> ClientRequest:
    body: dict[str, Any] = dict(request.body)
    chat = "messages" in body
    text = body["messages"][0]["content"] if chat else body["prompt"]
    if rng.random() < 0.2:
        text = f"{text}. {text}. {text}"
    system = rng.choice(shared) if rng.random() < 1 / 3 else ""
    if not chat:
        return replace(request, body=body | {"prompt": f"{system} {text}" if system else text})
    messages = [{"role": "system", "content": system}] if system else []
    body["messages"] = [*messages, {"role": "user", "content": text}]
    if rng.random() < 0.1:
        body.pop("stop", None)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "item", "schema": SCHEMA}}
    return replace(request, body=body)


@dataclass
class EqualityResult:
    """The answers of both servers to the same requests."""

    requests: int
    killed: int
    """Workers that were killed."""
    interrupted: int
    """Sequences that were sent to another worker."""
    drafted: int
    accepted: int
    tier_tokens: int
    """Prompt tokens whose KV came from the prefix tier."""
    seconds: tuple[float, float]
    """The time of the plain server, and of the one with features and kills."""
    problems: list[str] = field(default_factory=list)
    """A line for each answer that is not as it was on the plain server."""


def measure(backend: str, count: int, *, model: str, cache: Path, context: int, seed: int) -> EqualityResult:
    """Send the same requests to a plain server, and to one with all features whose workers are killed."""
    lengths = {"longest": context // 24, "tokens": context // 10, "system": context // 16}
    asked = mixed_requests(random.Random(seed), count, **lengths)
    options: dict[str, Any] = {"name": "chaos", "backend": backend, "context": context, "cache_dir": str(cache)}
    options |= {"max_batch_size": AT_ONCE, "worker_wait_s": WORKER_WAIT_S}
    options |= {"model": model, "dtype": "bfloat16"} if model else {}
    began = time.perf_counter()
    with served(options | {"prefix_cache": False, "speculate": "off"}) as plain:
        whole = asyncio.run(_answers(plain, asked))
    middle = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        options |= {"speculate": "auto", "standby": 1}
        options |= {"prefix_cache_bytes": TIER_BYTES, "prefix_cache_dir": directory}
        with served(options) as broken:
            kills = WorkerKills(broken, random.Random(seed))
            answers = asyncio.run(_answers(broken, asked, kills))
            kills.wait_until_ready()
            metrics = broken.metrics()
    return EqualityResult(
        requests=count,
        killed=kills.count,
        interrupted=round(metrics.get("baton_replays_total", 0.0)),
        drafted=round(metrics["baton_spec_decode_num_draft_tokens_total"]),
        accepted=round(metrics["baton_spec_decode_num_accepted_tokens_total"]),
        tier_tokens=round(metrics["baton_prefix_tier_tokens_total"]),
        seconds=(middle - began, time.perf_counter() - middle),
        problems=list(differences(asked, whole, answers)),
    )


def differences(
    asked: Sequence[ClientRequest], whole: Sequence[Transcript], answers: Sequence[Transcript]
) -> Iterator[str]:
    """Yield a line for each answer that did not end as it should, or differs from the plain server's."""
    for number, (request, plain, answer) in enumerate(zip(asked, whole, answers, strict=True)):
        problem = ""
        for name, each in (("plain", plain), ("with features", answer)):
            if each.errors:
                problem = problem or f"{name}: {': '.join(each.errors[0])}"
            problem = problem or each.violation(request.choices)
        if not problem and not answer.same(plain):
            problem = f"{answer.choices} {answer.usages}, not {plain.choices} {plain.usages}"
        if problem:
            yield f"request {number}, {request}: {problem}"


class WorkerKills:
    """Kills an active worker at a random moment after each `KILL_EVERY` answers."""

    def __init__(self, found: Served, rng: random.Random) -> None:
        self.count = 0
        self._found = found
        self._random = rng
        self._answers = 0

    async def answered(self) -> None:
        """Count an answer."""
        self._answers += 1
        if self._answers % KILL_EVERY:
            return
        await asyncio.sleep(self._random.uniform(0.0, 0.2))
        active = await asyncio.to_thread(self._found.watcher.active)
        if active:
            os.kill(int(self._random.choice(active)["pid"]), signal.SIGKILL)
            self.count += 1

    def wait_until_ready(self) -> None:
        """Wait until all workers are ready again: their last counts have arrived then."""
        self._found.watcher.wait_until_ready(READY_TIMEOUT_S)


async def _answers(found: Served, asked: Sequence[ClientRequest], kills: WorkerKills | None = None) -> list[Transcript]:
    """Send all requests, `AT_ONCE` at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(request: ClientRequest) -> Transcript:
        transcript = Transcript()
        async with room:
            try:
                await send(found.server, request, transcript)
            except (OSError, ValueError, asyncio.LimitOverrunError) as error:
                transcript.errors.append(("connection", repr(error)))
        if kills is not None:
            await kills.answered()
        return transcript

    return await asyncio.gather(*map(one, asked))
