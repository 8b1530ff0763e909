"""The interface of the engines that `bench/peers/rivals.py` compares."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.harness.shapes import TOKENS
from bench.measurement.rounds import RefusedError


@dataclass(frozen=True, slots=True)
class RivalModel:
    """A checkpoint in Hugging Face layout, and how an engine is to run it."""

    path: Path
    precision: str
    """Precision of the weights: bf16, int8 or int4."""
    cpu: str
    """The CPU whose instructions are used: host or avx2."""
    threads: int
    slots: int
    context: int
    folder: Path
    """Keeps converted weights, compiled graphs and environments."""

    @property
    def kv_gigabytes(self) -> int:
        """A KV cache that holds all slots: 64 KB a position, which suffices for models of a billion parameters."""
        return max(1, -(-self.slots * self.context * (64 << 10) // (1 << 30)))

    def converted(self, engine: str) -> Path:
        """Return where an engine keeps these weights in its own format."""
        return self.path.with_name(f"{self.path.name}-{engine}-{self.precision}")


class Session(Protocol):
    """An engine that has loaded its model. Raises `RefusedError` for what it cannot do."""

    def decode(self, streams: int, prompt: int, tokens: int) -> float:
        """Greedy tokens a second of `streams` sequences that decode together after `prompt` tokens each."""
        ...

    def prefill(self, length: int) -> float:
        """Prompt tokens a second of one prompt."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> int:
        """Generate greedily after all prompts at once, and return the number of tokens."""
        ...

    def complete(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """Greedy tokens after a prompt."""
        ...

    def close(self) -> None: ...


class Rival(Protocol):
    """An engine that can be installed."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str:
        """Its packages with their versions, and its settings."""
        ...

    def refusal(self, precision: str, cpu: str) -> str:
        """Why it does not run this precision on this CPU, or is not installed; empty if it does."""
        ...

    def install(self, cpu: str, jobs: int) -> None:
        """Install or build it for a CPU. Raises `PeerError`."""
        ...

    def prepare(self, model: RivalModel) -> None:
        """Convert the weights, unless they are. Raises `PeerError`."""
        ...

    def start(self, model: RivalModel, caches: Path | None = None) -> Session:
        """Load the model in a new process. `caches` is the folder of what the engine keeps between starts, by default
        one that is kept. Raises `PeerError`."""
        ...


class Prompts:
    """Random prompts, so that none is found in a prefix cache."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def batch(self, count: int, length: int) -> list[list[int]]:
        return [self._random.choices(TOKENS, k=length) for _ in range(count)]


MIN_STEPS = 8
"""Steps in which all sequences decode that a figure needs."""


def decode_rate(steps: Sequence[tuple[float, int]], streams: int) -> float:
    """Tokens a second over the steps in which each of `streams` sequences got a token. The first of them is left out,
    as it may compute the last prompt.

    Raises `RefusedError` if there are fewer than `MIN_STEPS`.
    """
    together = [seconds for seconds, tokens in steps if tokens == streams][1:]
    if len(together) < MIN_STEPS:
        raise RefusedError(f"only {len(together)} steps in which all {streams} sequences decode: ask for more tokens")
    return streams * len(together) / sum(together)


def prefill_rate(steps: Sequence[tuple[float, int]], length: int) -> float:
    """Prompt tokens a second from the submission of one prompt to its first token.

    Raises `RefusedError` if there was no token.
    """
    seconds = 0.0
    for took, tokens in steps:
        seconds += took
        if tokens:
            return length / seconds
    raise RefusedError("no token was generated")


@dataclass(frozen=True, slots=True)
class FirstSeconds:
    """The first seconds of a process."""

    first_token_s: float
    """From the start of the process to the first token of one prompt."""
    tokens_per_s: float
    """Rate of the bursts that follow."""


def cold_start(
    start: Callable[[], Session], streams: int, prompt: int, tokens: int, seconds: float, clock: Callable[[], float]
) -> FirstSeconds:
    """Start an engine, generate one token, and then bursts of `streams` requests until `seconds` have passed."""
    prompts = Prompts(1)
    began = clock()
    session = start()
    try:
        session.generate(prompts.batch(1, prompt), 1)
        first = clock()
        count = 0
        while (now := clock()) - first < seconds:
            count += session.generate(prompts.batch(streams, prompt), tokens)
        return FirstSeconds(first - began, count / (now - first))
    finally:
        session.close()
