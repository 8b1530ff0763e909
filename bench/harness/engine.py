"""`BatchEngine` in this process, as benchmarks use it.

What the engine does not know or cannot hold raises `RefusedError` with the engine's own words.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.harness.settled import load_settled
from bench.harness.shapes import TOKENS
from bench.measurement.rounds import RefusedError
from workers.engine.engine import BatchEngine
from workers.engine.request import Constraint, EngineRequest, RequestRefused
from workers.engine.runner import Runner
from workers.engine.step_result import StepResult
from workers.errors import LoadRefused
from workers.iree.build.compiler import CompileError
from workers.process.spec import WorkerSpec


@dataclass(frozen=True, slots=True)
class Setup:
    """Load settings: the fields of `WorkerSpec` that benchmarks set."""

    path: Path
    cache: Path
    slots: int
    context: int
    dtype: str = "bfloat16"
    quantize: str = ""
    device: str = ""
    cpu: str = "host"
    backend: str = "iree"
    window_cache: str = "full"

    def spec(self) -> WorkerSpec:
        """Raises `RefusedError` for a value that this version of Baton does not know."""
        fields: dict[str, Any] = {"name": "bench", "model_name": "bench", "model_path": str(self.path)}
        fields |= {"backend": self.backend, "max_batch_size": self.slots, "context": self.context, "dtype": self.dtype}
        fields |= {"device": self.device, "cache_dir": str(self.cache), "cpu": self.cpu}
        fields |= {"quantize": self.quantize} if self.quantize else {}
        fields |= {"window_cache": self.window_cache} if self.window_cache != "full" else {}
        try:
            return msgspec.convert(fields, WorkerSpec)
        except msgspec.ValidationError as error:
            raise RefusedError(str(error)) from error


class Engine:
    """A loaded model and its engine, in this process; prompts are random, so that none is found in a prefix cache."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self._engine = BatchEngine(runner, max_queue=0, step_tokens=1 << 20)
        self.fill_s = 0.0
        """Seconds until all prompts of the last `steps` had their first token."""
        self._streams = 0
        self._random = random.Random(seed)

    @classmethod
    def load(cls, setup: Setup) -> "Engine":
        """Load a model; compiles what is not in the cache. Raises `RefusedError`."""
        try:
            return cls(load_settled(setup.spec()))
        except (LoadRefused, CompileError) as error:
            raise RefusedError(str(error)) from error

    def prompt(self, length: int) -> tuple[int, ...]:
        return tuple(self._random.choices(TOKENS, k=length))

    def decode(self, streams: int, prompt: int, tokens: int) -> float:
        """Greedy tokens a second of `streams` sequences that decode together after `prompt` tokens each."""
        steps = self.steps([self.prompt(prompt) for _ in range(streams)], tokens)
        return streams * len(steps) / sum(steps)

    def memory_share(
        self, streams: int, prompt: int, tokens: int, read: float, bandwidth: Callable[[], float]
    ) -> float:
        """The share of a step's time that memory alone would take to read its `read` bytes: the median over the steps.

        Each step is compared with the `bandwidth` (bytes a second) that is measured just before it, so that both meet
        the same load of a shared machine.
        """
        found: list[float] = []
        steps = self.steps([self.prompt(prompt) for _ in range(streams)], tokens, lambda: found.append(bandwidth()))
        return statistics.median(read / speed / took for speed, took in zip(found, steps, strict=True))

    def steps(
        self,
        prompts: Sequence[tuple[int, ...]],
        count: int,
        before: Callable[[], None] | None = None,
        constraints: Sequence[Constraint | None] = (),
    ) -> list[float]:
        """Seconds of `count` steps that decode one token for each prompt; `before` is called before each, untimed.
        `constraints` has one for each prompt, or none at all.

        Raises `RefusedError` for more prompts than slots.
        """
        streams: list[int] = []
        began = time.perf_counter()
        try:
            for prompt, constraint in zip(prompts, constraints or [None] * len(prompts), strict=True):
                streams.append(self._submit(prompt, count + 8, constraint))
            begun: set[int] = set()
            while len(begun) < len(streams):
                begun |= {token.stream for token in self._step().tokens}
            self.fill_s = time.perf_counter() - began
            self._step()
            return [self._timed_step(len(streams), before) for _ in range(count)]
        finally:
            for stream in streams:
                self._engine.cancel(stream)

    def _timed_step(self, rows: int, before: Callable[[], None] | None) -> float:
        if before is not None:
            before()
        start = time.perf_counter()
        result = self._step()
        took = time.perf_counter() - start
        if len(result.tokens) != rows:
            raise RuntimeError(f"{len(result.tokens)} tokens came from a step of {rows} sequences")
        return took

    def prefill(self, length: int) -> float:
        """Prompt tokens a second from a prompt's submission to its first token."""
        self._submit(self.prompt(length), 1)
        start = time.perf_counter()
        while not self._step().tokens:
            pass
        return length / (time.perf_counter() - start)

    def complete(self, prompt: Sequence[int], tokens: int, banned: frozenset[int] = frozenset()) -> list[int]:
        """Greedy tokens after a prompt, without those that are `banned`."""
        self._submit(tuple(prompt), tokens, banned=banned)
        out: list[int] = []
        while not self._engine.idle:
            out += [token.token for token in self._step().tokens]
        return out

    def close(self) -> None:
        self._engine.close()

    def _submit(
        self,
        prompt: tuple[int, ...],
        tokens: int,
        constraint: Constraint | None = None,
        banned: frozenset[int] = frozenset(),
    ) -> int:
        self._streams += 1
        least = tokens if banned else 0
        request = EngineRequest(
            self._streams, prompt, max_tokens=tokens, constraint=constraint, eos=banned, min_tokens=least
        )
        try:
            self._engine.submit(request)
        except RequestRefused as error:
            raise RefusedError(str(error)) from error
        return self._streams

    def _step(self) -> StepResult:
        result = self._engine.step()
        if result.failures:
            raise RuntimeError(result.failures[0].text)
        return result
