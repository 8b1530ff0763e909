"""The cost of scheduler and engine on top of the device, in microseconds a token.

    python bench/overhead/scheduler.py [--steps 20000] [--rounds 5] [--profile ROWS]

The runner answers from a constant, so that all the time is the engine's: deciding the step, making the rows, taking
the tokens and ends. `decode` is a steady step of 1, 8 and 64 rows; `churn` is sequences of 8 tokens that come and go,
with their admission, prefill and reset. Medians over the rounds. `--profile` prints the functions that take most.
There is no peer; the limit is 0.
"""

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray

from bench.harness.command_line import at_least, command_line, parsed
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Chunk, DecodeRow, RunnerCapabilities
from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import SampleSpec

ROWS = (1, 8, 64)
PROMPT = tuple(range(16))
CONTEXT = 1 << 20


class Constant:
    """A runner that computes nothing."""

    def __init__(self, slots: int) -> None:
        self.capabilities = RunnerCapabilities("constant", "none", "float32", slots, CONTEXT, 1000, (16, 64, 256))
        self.graphs_failed, self.draft_head, self.attention, self.vision = 0, None, None, None
        self._tokens: list[list[int | None]] = [[7] * rows for rows in range(slots + 1)]

    def fits(self, rows: int) -> bool:
        return rows < len(self._tokens)

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        return [None if spec is None else 7 for spec in specs]

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        return self._tokens[len(rows)]

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        raise NotImplementedError

    @property
    def reported_rows(self) -> tuple[int, ...]:
        raise NotImplementedError

    def prefill_reported(
        self, chunk: Chunk, spec: SampleSpec | None, targets: Sequence[int]
    ) -> tuple[int | None, list[RowLogprobs]]:
        raise NotImplementedError

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        raise NotImplementedError

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        raise NotImplementedError

    def copy_prefix(self, source: int, target: int, length: int) -> None: ...

    def read_rows(self, slot: int, start: int, end: int) -> bytes:
        raise NotImplementedError

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        raise NotImplementedError

    def read_state(self, slot: int, length: int | None = None) -> bytes:
        raise NotImplementedError

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        raise NotImplementedError

    def reset(self, slot: int) -> None: ...

    def memory(self) -> dict[str, int]:
        return {"weights": 0, "kv": 0}

    def settle(self) -> None: ...

    def close(self) -> None: ...


def decode(rows: int, steps: int) -> float:
    """Microseconds a token of steady decoding."""
    engine = BatchEngine(Constant(rows), max_queue=rows, step_tokens=1 << 16)
    for stream in range(rows):
        engine.submit(EngineRequest(stream, PROMPT))
    engine.step()
    began = time.perf_counter()
    for _ in range(steps):
        engine.step()
    return (time.perf_counter() - began) / (steps * rows) * 1e6


def churn(rows: int, steps: int) -> float:
    """Microseconds a token when every sequence has 8 tokens and others wait."""
    engine = BatchEngine(Constant(rows), max_queue=2 * rows, step_tokens=1 << 16)
    streams = count()
    tokens = 0
    began = time.perf_counter()
    for _ in range(steps):
        for _ in range(rows - engine.gauges().queue_depth):
            engine.submit(EngineRequest(next(streams), PROMPT, max_tokens=8))
        tokens += len(engine.step().tokens)
    return (time.perf_counter() - began) / tokens * 1e6


def measure(function: Callable[[int, int], float], rows: int, steps: int, rounds: int) -> float:
    function(rows, steps // 10 + 1)
    return statistics.median(function(rows, max(steps // rows, 20)) for _ in range(rounds))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=at_least(1), default=20_000, help="steps of one row; more rows take fewer")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="runs of each figure; medians are printed")
    parser.add_argument("--profile", type=at_least(1), metavar="ROWS", help="profile the decode steps of ROWS rows")
    return parsed(parser, words, smoke={"steps": 100, "rounds": 1})


def main() -> None:
    options = arguments()
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(decode, options.profile, options.steps // options.profile + 1)
        pstats.Stats(profile).sort_stats("tottime").print_stats(14)
        return
    print("rows  decode us/token  us/step   churn us/token")
    for rows in ROWS:
        steady = measure(decode, rows, options.steps, options.rounds)
        coming = measure(churn, rows, options.steps, options.rounds)
        print(f"{rows:4}  {steady:15.2f}  {steady * rows:7.1f}  {coming:15.2f}")


if __name__ == "__main__":
    main()
