"""Throws mutated bodies at the decoder of requests: `python -m tests.attacks.answers.bodies_at_random 1000000`.

Whatever a body is, the decoder returns a request or raises `RequestError`, whose status is a 4xx.
"""

import json
import random
import sys
import time
from collections import Counter
from copy import deepcopy
from typing import Any

import psutil

from gateway.errors import RequestError
from gateway.openai.decoding import RequestDecoder
from gateway.settings import GatewaySettings
from protocol.codec import encode_commands
from protocol.commands import Submit

VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        64,
        65,
        1 << 20,
        1 << 31,
        1 << 63,
        -(1 << 63),
        1 << 64,
        10**400,
        0.5,
        -0.0,
        1e308,
    ),
    *("", "a", "\u0000", "\ud800", "\u00e9" * 300, "x" * 5000, "scripted", "user", "text", "1", "json"),
    *([], {}, [[]], [{}], {"": None}, {"1": 1}, {"type": "text"}, {"role": "user", "content": "x"}, [1, "a", [2]]),
)
TEXTS = ("NaN", "-Infinity", "1e999", "0x1", "'a'", "\\", '"\\ud800"', "\ufeff{}", "[[[[", "]", '{"a":1,"a":2}', "/*")
BASES: tuple[dict[str, Any], ...] = (
    {"model": "m", "prompt": "hi", "max_tokens": 5, "n": 2, "logprobs": 3, "stop": ["a", "b"], "seed": 7},
    {"model": "m", "prompt": [[1, 2], [3]], "stream": True, "stream_options": {"include_usage": True, "resume_s": 5}},
    {"model": "m", "prompt": ["a", "b"], "logit_bias": {"5": -100}, "top_p": 0.5, "metadata": {"a": "b"}},
    {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "t"}]}],
        "max_completion_tokens": 9,
        "logprobs": True,
        "top_logprobs": 20,
        "tools": [],
        "response_format": {"type": "text"},
    },
)
FIELDS = sorted(
    {field for base in BASES for field in base} | {"echo", "suffix", "user", "best_of", "name", "x", "tools"}
)


class Bodies:
    """Mutated bodies, one after the other."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def next(self) -> bytes:
        """The next body: another value somewhere, and sometimes other bytes."""
        chance = self._random
        body: Any = json.loads(json.dumps(chance.choice(BASES)))
        for _ in range(chance.randrange(4)):
            body = self._changed(body, 4)
        raw = json.dumps(body).encode()
        if chance.random() < 0.3:
            raw = self._damaged(raw)
        return raw

    def _changed(self, value: Any, depth: int) -> Any:
        chance = self._random
        if isinstance(value, dict) and depth and chance.random() < 0.9:
            field = chance.choice([*value, *FIELDS])
            if chance.random() < 0.1:
                value.pop(field, None)
            else:
                value[field] = self._changed(value.get(field), depth - 1)
            return value
        if isinstance(value, list) and value and depth and chance.random() < 0.7:
            place = chance.randrange(len(value))
            value[place] = self._changed(value[place], depth - 1)
            return value * chance.choice((1, 1, 1, 2, 40))
        return deepcopy(chance.choice(VALUES))

    def _damaged(self, raw: bytes) -> bytes:
        chance = self._random
        place = chance.randrange(len(raw) + 1)
        match chance.randrange(5):
            case 0:
                return raw[:place]
            case 1:
                return raw[:place] + chance.choice(TEXTS).encode("utf-8", "surrogatepass") + raw[place:]
            case 2:
                return raw[:place] + chance.randbytes(chance.randrange(1, 5)) + raw[place:]
            case 3:
                return raw[:place] + raw[place + chance.randrange(1, 20) :]
            case _:
                return raw + raw[place:]


def outcome(decoder: RequestDecoder, raw: bytes, chat: bool) -> str:
    """Return `accepted` for a body that can be sent to a worker, or else the code of the refusal."""
    try:
        request = (decoder.chat if chat else decoder.completion)(raw).request
    except RequestError as error:
        return _checked(error, raw)
    encode_commands(
        [Submit(1, "r", each.input, each.sampling, each.limits, tenant=each.cache_salt) for each in request.sequences]
    )
    return "accepted"


def _checked(refusal: RequestError, raw: bytes) -> str:
    assert 400 <= refusal.status < 500, (refusal.status, raw)
    assert refusal.text.encode(), raw
    return refusal.code.value


def throw(count: int, seed: int = 0) -> Counter[str]:
    """Throw so many bodies, and count how they were taken."""
    decoder, bodies = RequestDecoder(GatewaySettings()), Bodies(seed)
    outcomes: Counter[str] = Counter()
    for number in range(count):
        raw = bodies.next()
        outcomes[outcome(decoder, raw, chat=bool(number & 1))] += 1
    return outcomes


def resident() -> int:
    """The resident memory in bytes."""
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    """Throw as many bodies as the first argument says, and report."""
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    throw(min(count, 10_000), seed + 1)
    before, began = resident(), time.perf_counter()
    outcomes = throw(count, seed)
    print(f"{count} bodies in {time.perf_counter() - began:.0f} s; memory {before >> 20} to {resident() >> 20} MiB")
    for name, number in outcomes.most_common():
        print(f"{number:9d} {name}")


if __name__ == "__main__":
    main()
