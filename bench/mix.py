"""The requests of a soak and how their clients behave: pure functions of a random source."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.load import WORDS
from cli.chaos.http_client import ClientRequest, Disconnect

LEAVES = 0.25
"""Of the visits."""
SHARED = "You are asked to go on with what follows, in the manner in which it began. "
"""What some prompts begin with, so that a prefix cache has something to share."""
LETTERS = "aeinorst"


def requests(draw: random.Random, count: int, *, longest: int, tokens: int) -> list[ClientRequest]:
    """Requests that differ, with prompts of up to `longest` words and answers of up to `tokens` tokens.

    Half of the APIs, half streamed; greedy, drawn with a seed, and drawn without one; some with several choices, stop
    strings, penalties or log-probabilities.
    """
    found: dict[str, ClientRequest] = {}
    while len(found) < count:
        request = _request(draw, longest, tokens)
        found.setdefault(repr(request), request)
    return list(found.values())


def deterministic(request: ClientRequest) -> bool:
    """Its answer is the same each time that it is asked for."""
    return not request.body["temperature"] or "seed" in request.body


def _request(draw: random.Random, longest: int, tokens: int) -> ClientRequest:
    prompt = " ".join(
        draw.choice(WORDS) for _ in range(draw.choice([1, draw.randint(2, 24), draw.randint(2, longest)]))
    )
    if draw.random() < 0.3:
        prompt = SHARED + prompt
    body: dict[str, Any] = {
        "model": "chaos",
        "max_tokens": draw.choice([1, draw.randint(2, 16), draw.randint(16, tokens), draw.randint(16, tokens)]),
        "return_token_ids": True,
        "temperature": draw.choice([0.0, 0.0, 0.7, 1.2]),
    }
    if body["temperature"] and draw.random() < 0.8:
        body["seed"] = draw.randrange(1 << 32)
    if draw.random() < 0.25:
        body["n"] = draw.randint(2, 3)
    if draw.random() < 0.3:
        body["stop"] = [draw.choice(LETTERS) + draw.choice(LETTERS) for _ in range(draw.randint(1, 3))]
    if draw.random() < 0.3:
        body |= draw.choice([{"frequency_penalty": 0.5}, {"presence_penalty": 1.0}, {"logit_bias": {"101": -2.0}}])
    if draw.random() < 0.7:
        body["ignore_eos"] = True
    if draw.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if draw.random() < 0.5:
        return ClientRequest("/v1/completions", body | {"prompt": prompt})
    return ClientRequest("/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]})


@dataclass(frozen=True)
class Visit:
    """One client asks for one of the requests, by its number, after a pause."""

    request: int
    pause_s: float
    leave: Disconnect | None


def visits(draw: random.Random, count: int) -> Iterator[Visit]:
    """What one client does, without end, with `count` requests to choose from."""
    while True:
        leave = None
        if draw.random() < LEAVES:
            leave = Disconnect(draw.choice([1, draw.randint(2, 40)]), draw.uniform(0.0, 1.0), draw.random() < 0.5)
        yield Visit(draw.randrange(count), draw.choice([0.0, draw.uniform(0.0, 0.1)]), leave)
