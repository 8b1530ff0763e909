"""The engine as benchmarks see it: `BatchEngine` in this process, or `baton serve` in another.

Whatever the engine does not know or cannot hold is a `RefusedError` in the engine's own words.
"""

import asyncio
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.load import Answer, BadAnswerError, request
from bench.rounds import RefusedError
from bench.shapes import TOKENS
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest, RequestRefused
from workers.engine.runner import Runner
from workers.engine.step_result import StepResult
from workers.errors import LoadRefused
from workers.iree.build.compiler import CompileError
from workers.process.backends import load_runner
from workers.process.spec import WorkerSpec

START_TIMEOUT_S = 900
"""A first start compiles every graph."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How a model is loaded: the fields of `WorkerSpec` that benchmarks set."""

    path: Path
    cache: Path
    slots: int
    context: int
    dtype: str = "bfloat16"
    quantize: str = ""
    device: str = ""

    def spec(self) -> WorkerSpec:
        """Raises `RefusedError` for what this version of Baton has no field or value for."""
        fields: dict[str, Any] = {"name": "bench", "model_name": "bench", "model_path": str(self.path)}
        fields |= {"backend": "iree", "max_batch_size": self.slots, "context": self.context, "dtype": self.dtype}
        fields |= {"device": self.device, "cache_dir": str(self.cache)}
        fields |= {"quantize": self.quantize} if self.quantize else {}
        try:
            return msgspec.convert(fields, WorkerSpec)
        except msgspec.ValidationError as error:
            raise RefusedError(str(error)) from error


class Engine:
    """A loaded model and its engine, in this process; prompts are random, so that none is found in a prefix cache."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        runner.settle()  # graphs that would still be compiled beside the measurement
        self.runner = runner
        self._engine = BatchEngine(runner, max_queue=0, step_tokens=1 << 20)
        self.fill_s = 0.0
        """Seconds until all prompts of the last `steps` had their first token."""
        self._streams = 0
        self._random = random.Random(seed)

    @classmethod
    def load(cls, setup: Setup) -> "Engine":
        """Compiles what is not in the cache. Raises `RefusedError`."""
        try:
            return cls(load_runner(setup.spec(), lambda phase, done, total: None))
        except (LoadRefused, CompileError) as error:
            raise RefusedError(str(error)) from error

    def prompt(self, length: int) -> tuple[int, ...]:
        return tuple(self._random.choices(TOKENS, k=length))

    def decode(self, streams: int, prompt: int, tokens: int) -> float:
        """Greedy tokens a second of `streams` sequences that decode together, each `prompt` tokens long at first."""
        steps = self.steps([self.prompt(prompt) for _ in range(streams)], tokens)
        return streams * len(steps) / sum(steps)

    def memory_share(
        self, streams: int, prompt: int, tokens: int, read: float, bandwidth: Callable[[], float]
    ) -> float:
        """What part of such steps' time memory alone would take for the `read` bytes of each.

        The median over the steps, each beside the `bandwidth` (bytes a second) that is measured just before it. Both
        meet the same machine so, which a mean of steps and the best of several reads do not where it is shared.
        """
        found: list[float] = []
        steps = self.steps([self.prompt(prompt) for _ in range(streams)], tokens, lambda: found.append(bandwidth()))
        return statistics.median(read / speed / took for speed, took in zip(found, steps, strict=True))

    def steps(
        self, prompts: Sequence[tuple[int, ...]], count: int, before: Callable[[], None] | None = None
    ) -> list[float]:
        """Seconds of `count` steps that decode one token for each prompt; `before` is called before each, and not
        timed. Raises `RefusedError` for too many."""
        streams: list[int] = []
        began = time.perf_counter()
        try:
            for prompt in prompts:
                streams.append(self._submit(prompt, count + 8))
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

    def complete(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """Greedy tokens after a prompt."""
        self._submit(tuple(prompt), tokens)
        out: list[int] = []
        while not self._engine.idle:
            out += [token.token for token in self._step().tokens]
        return out

    def close(self) -> None:
        self._engine.close()

    def _submit(self, prompt: tuple[int, ...], tokens: int) -> int:
        self._streams += 1
        try:
            self._engine.submit(EngineRequest(self._streams, prompt, max_tokens=tokens))
        except RequestRefused as error:
            raise RefusedError(str(error)) from error
        return self._streams

    def _step(self) -> StepResult:
        result = self._engine.step()
        if result.failures:
            raise RuntimeError(result.failures[0].text)
        return result


@contextmanager
def server(setup: Setup) -> Iterator[str]:
    """`baton serve` on a free port until the block ends: its URL. Raises RuntimeError when it does not get ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options: dict[str, Any] = {
        "--backend": "iree",
        "--name": "bench",
        "--port": port,
        "--max-batch-size": setup.slots,
        "--dtype": setup.dtype,
        "--context": setup.context,
        "--cache-dir": setup.cache,
        "--log-level": "warning",
    }
    options |= {"--quantize": setup.quantize} if setup.quantize else {}
    options |= {"--device": setup.device} if setup.device else {}
    command = [sys.executable, "-m", "cli", "serve", str(setup.path)]
    command += [str(word) for option in options.items() for word in option]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_until_ready(url, process)
            yield url
        finally:
            process.terminate()


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError("the server did not become ready")


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
        """Tokens a second while all of `streams` requests decode. Raises `RefusedError` where there is no figure."""
        try:
            if streams not in self._met:  # the first time may load graphs and allocate
                asyncio.run(self._burst(streams, 8, 4))
                self._met.add(streams)
            return decode_rate(asyncio.run(self._burst(streams, prompt, tokens)))
        except (BadAnswerError, OSError, ValueError) as error:
            raise RefusedError(str(error)) from error

    async def _burst(self, streams: int, prompt: int, tokens: int) -> list[Answer]:
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


def decode_rate(answers: Sequence[Answer]) -> float:
    """Tokens a second over the time in which every answer was being generated: from the last one's first text to the
    first one's last.

    An answer's chunks count for equal shares of its tokens. Raises ValueError when there was no such time.
    """
    if not answers or not all(answer.stamps for answer in answers):
        raise ValueError("an answer has no text")
    begin = max(answer.stamps[0] for answer in answers)
    end = min(answer.stamps[-1] for answer in answers)
    if begin >= end:
        raise ValueError("the answers were not generated at one time: ask for more tokens")
    tokens = 0.0
    for answer in answers:
        inside = sum(begin < stamp <= end for stamp in answer.stamps)
        tokens += inside * answer.tokens / len(answer.stamps)
    return tokens / (end - begin)
