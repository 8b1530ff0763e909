"""`baton serve` in a process of its own, and a client of any server that speaks OpenAI's API."""

import asyncio
import contextlib
import random
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.harness.child_server import free_port, running
from bench.harness.engine import Setup
from bench.harness.shapes import TOKENS
from bench.harness.sse_client import BadAnswerError, StreamedAnswer, request
from bench.measurement.rounds import RefusedError

START_TIMEOUT_S = 900
"""A first start compiles every graph."""
TRIES = 3
"""Bursts until one has a time in which all requests decode: on a busy machine the client may read them one by one."""


class NotTogetherError(Exception):
    """Raised when answers were not generated at the same time."""


@contextmanager
def server(setup: Setup, *words: str) -> Iterator[str]:
    """Run `baton serve`, with further words on its command line, until the block ends, and yield its URL. Raises
    `NotReadyError`."""
    port = free_port()
    options: dict[str, Any] = {
        "--backend": setup.backend,
        "--name": "bench",
        "--port": port,
        "--max-batch-size": setup.slots,
        "--dtype": setup.dtype,
        "--context": setup.context,
        "--cache-dir": setup.cache,
        "--cpu": setup.cpu,
        "--log-level": "warning",
        "--speculate": "off",  # the answers of random weights repeat themselves
        "--prefix-cache-bytes": 0,  # servers that run side by side would share what one has computed
    }
    options |= {"--quantize": setup.quantize} if setup.quantize else {}
    options |= {"--device": setup.device} if setup.device else {}
    command = [sys.executable, "-m", "cli", "serve", str(setup.path)]
    command += [*(str(word) for option in options.items() for word in option), *words]
    url = f"http://127.0.0.1:{port}"
    with running(command, f"{url}/health/ready", START_TIMEOUT_S):
        yield url


@dataclass
class Client:
    """Sends bursts of equal requests to a server that speaks OpenAI's API over SSE."""

    url: str
    extra: Mapping[str, Any]
    seed: int = 0
    _random: random.Random = field(init=False)
    _met: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def decode(self, streams: int, prompt: int, tokens: int) -> float:
        """Tokens a second while all of `streams` requests decode. Raises `RefusedError` if a request fails, or if the
        requests never decode at the same time."""
        try:
            if streams not in self._met:  # the first time may load graphs and allocate
                asyncio.run(self._burst(streams, 8, 4))
                self._met.add(streams)
            for _ in range(TRIES - 1):
                with contextlib.suppress(NotTogetherError):
                    return decode_rate(asyncio.run(self._burst(streams, prompt, tokens)))
            return decode_rate(asyncio.run(self._burst(streams, prompt, tokens)))
        except (BadAnswerError, NotTogetherError, OSError, ValueError) as error:
            raise RefusedError(str(error)) from error

    async def _burst(self, streams: int, prompt: int, tokens: int) -> list[StreamedAnswer]:
        url = urllib.parse.urlsplit(self.url)
        bodies = [
            {
                "model": "bench",
                "prompt": self._random.choices(TOKENS, k=prompt),
                "max_tokens": tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self.extra,
            }
            for _ in range(streams)
        ]
        return await asyncio.gather(*(request(url, "/v1/completions", "", body) for body in bodies))


def decode_rate(answers: Sequence[StreamedAnswer]) -> float:
    """Tokens a second over the time in which every answer was being generated: from the last one's first text to the
    first one's last.

    An answer's chunks count for equal shares of its tokens. Raises `NotTogetherError` if there was no such time, and
    ValueError for an answer without text.
    """
    if not answers or not all(answer.stamps for answer in answers):
        raise ValueError("an answer has no text")
    begin = max(answer.stamps[0] for answer in answers)
    end = min(answer.stamps[-1] for answer in answers)
    if begin >= end:
        raise NotTogetherError("the answers were not generated at the same time: ask for more tokens")
    tokens = 0.0
    for answer in answers:
        inside = sum(begin < stamp <= end for stamp in answer.stamps)
        tokens += inside * answer.tokens / len(answer.stamps)
    return tokens / (end - begin)
