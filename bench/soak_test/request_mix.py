"""The requests of a soak and how their clients behave: pure functions of a random source."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.harness.words import WORDS
from cli.chaos.http_client import ClientRequest, Disconnect

LEAVES = 0.25
"""Share of the visits whose client leaves before the end."""
SHARED = "You are asked to go on with what follows, in the manner in which it began. "
"""A prefix of some prompts, for the prefix cache to share."""
LETTERS = "aeinorst"


def requests(rng: random.Random, count: int, *, longest: int, tokens: int) -> list[ClientRequest]:
    """Different requests, with prompts of up to `longest` words and answers of up to `tokens` tokens.

    Half are completions and half chats, half are streamed; greedy, sampled with a seed, and sampled without one; some
    with several choices, stop strings, penalties or a logit bias.
    """
    found: dict[str, ClientRequest] = {}
    while len(found) < count:
        request = _request(rng, longest, tokens)
        found.setdefault(repr(request), request)
    return list(found.values())


def deterministic(request: ClientRequest) -> bool:
    """Return True if the answer is the same each time."""
    return not request.body["temperature"] or "seed" in request.body


def _request(rng: random.Random, longest: int, tokens: int) -> ClientRequest:
    prompt = " ".join(rng.choice(WORDS) for _ in range(rng.choice([1, rng.randint(2, 24), rng.randint(2, longest)])))
    if rng.random() < 0.3:
        prompt = SHARED + prompt
    body: dict[str, Any] = {
        "model": "chaos",
        "max_tokens": rng.choice([1, rng.randint(2, 16), rng.randint(16, tokens), rng.randint(16, tokens)]),
        "return_token_ids": True,
        "temperature": rng.choice([0.0, 0.0, 0.7, 1.2]),
    }
    if body["temperature"] and rng.random() < 0.8:
        body["seed"] = rng.randrange(1 << 32)
    if rng.random() < 0.25:
        body["n"] = rng.randint(2, 3)
    if rng.random() < 0.3:
        body["stop"] = [rng.choice(LETTERS) + rng.choice(LETTERS) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        body |= rng.choice([{"frequency_penalty": 0.5}, {"presence_penalty": 1.0}, {"logit_bias": {"101": -2.0}}])
    if rng.random() < 0.7:
        body["ignore_eos"] = True
    if rng.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if rng.random() < 0.5:
        return ClientRequest("/v1/completions", body | {"prompt": prompt})
    return ClientRequest("/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]})


@dataclass(frozen=True)
class Visit:
    """One client sends one of the requests, by its index, after a pause."""

    request: int
    pause_s: float
    leave: Disconnect | None


def visits(rng: random.Random, count: int) -> Iterator[Visit]:
    """Yield the visits of one client without end, of `count` requests."""
    while True:
        leave = None
        if rng.random() < LEAVES:
            leave = Disconnect(rng.choice([1, rng.randint(2, 40)]), rng.uniform(0.0, 1.0), rng.random() < 0.5)
        yield Visit(rng.randrange(count), rng.choice([0.0, rng.uniform(0.0, 0.1)]), leave)
