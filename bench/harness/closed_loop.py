"""Closed-loop load on a server that speaks OpenAI's API: a fixed number of requests in flight."""

import asyncio
import itertools
import random
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness.sse_client import BadAnswerError, StreamedAnswer, request
from bench.harness.words import WORDS


@dataclass(frozen=True)
class Load:
    """The destination and the contents of requests."""

    url: str
    model: str
    max_tokens: int
    prompt_words: int = 1
    same_prefix: int = 0
    """Words that all prompts share at their beginning."""
    path: str = "/v1/completions"
    key: str = ""
    temperature: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the body, which replace those above."""

    def asked(self, prompt: str) -> dict[str, Any]:
        """The field that carries the prompt, which depends on the path."""
        if self.path.endswith("/chat/completions"):
            return {"messages": [{"role": "user", "content": prompt}]}
        return {"prompt": prompt}


async def run_level(load: Load, streams: int, requests: int, randomness: random.Random) -> dict[str, Any]:
    """Keep `streams` requests in flight until `requests` are done. `bench/load.py` explains the figures."""
    url = urllib.parse.urlsplit(load.url)
    prefix = [randomness.choice(WORDS) for _ in range(load.same_prefix)]
    todo = iter(range(requests))
    good: list[StreamedAnswer] = []
    bad: list[str] = []

    async def lane() -> None:
        for _ in todo:
            own = max(1, load.prompt_words - load.same_prefix)
            prompt = " ".join(prefix + [randomness.choice(WORDS) for _ in range(own)])
            body = {
                "model": load.model,
                **load.asked(prompt),
                "max_tokens": load.max_tokens,
                "temperature": load.temperature,
                "stream": True,
                "stream_options": {"include_usage": True},
                **load.extra,
            }
            try:
                good.append(await request(url, load.path, load.key, body))
            except (BadAnswerError, OSError, ValueError) as error:
                bad.append(repr(error)[:300])

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(lane())
    wall = time.perf_counter() - began
    return {"streams": streams, "requests": requests} | _figures(good, bad, wall)


def _figures(good: list[StreamedAnswer], bad: list[str], wall: float) -> dict[str, Any]:
    tokens = sum(answer.tokens or len(answer.stamps) for answer in good)
    first = [1e3 * (answer.stamps[0] - answer.began) for answer in good if answer.stamps]
    between = [1e3 * (after - before) for answer in good for before, after in itertools.pairwise(answer.stamps)]
    return {
        "bad": len(bad),
        "why": bad[0] if bad else None,
        "out_tok_s": round(tokens / wall, 1),
        "tokens": tokens,
        "ttft_ms": [percentile(first, 0.5), percentile(first, 0.99)],
        "itl_ms": [percentile(between, 0.5), percentile(between, 0.99)],
        "e2e_ms": percentile([1e3 * (answer.ended - answer.began) for answer in good], 0.5),
        "wall_s": round(wall, 2),
    }


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the values lie; None without values."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else None
