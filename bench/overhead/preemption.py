"""Measures preemption: the wait of an urgent request, and the throughput of a pool with too little room.

    python bench/overhead/preemption.py [--model 110m] [--quantize int8] [--slots 8] [--rounds 3] [--pool 4096]

First all slots are busy with long streams of low urgency, which end one after the other, and a request of 64 tokens
comes: shown is its time to first token if it is no more urgent than they are, and if it takes the slot of one of them;
and by how much the streams end later, in all. Then requests without `max_tokens`, whose answers end after 16 to 512
tokens, share a pool of --pool rows: with the whole context reserved for each, as before, and with 512 rows at a time.
Figures are medians over the rounds; the engine is in this process.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Setup
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_model, add_quantize
from bench.harness.settled import load_settled
from bench.harness.shapes import TOKENS, make_model
from protocol.scheduling import LEVELS, Urgency
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.engine.slot_allocation import RESERVED_ROWS

PROMPT = 64
LOW, NORMAL, HIGH = (Urgency(level) for level in sorted(LEVELS.values(), reverse=True))
SHORTEST = 16
"""Tokens of the shortest answer."""


@dataclass
class TimedEngine:
    """An engine, its requests, and when each got its first token and ended, in seconds from the start."""

    engine: BatchEngine
    lengths: dict[int, int] = field(default_factory=dict)
    """Tokens after which each answer is to end."""
    got: dict[int, int] = field(default_factory=dict)
    first_at: dict[int, float] = field(default_factory=dict)
    ended_at: dict[int, float] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    def submit(self, prompt: tuple[int, ...], length: int, urgency: Urgency, *, bounded: bool) -> int:
        """Submit a request. One that is not `bounded` has no `max_tokens`."""
        stream = len(self.lengths)
        self.lengths[stream] = length
        limit = length if bounded else None
        self.engine.submit(EngineRequest(stream, prompt, max_tokens=limit, urgency=urgency))
        return stream

    def now(self) -> float:
        return time.perf_counter() - self.began

    def step(self) -> None:
        """Run a step, and end the answers that are long enough. Raises `RuntimeError` if a request fails."""
        result = self.engine.step()
        if result.failures:
            raise RuntimeError(result.failures[0].text)
        now = self.now()
        for token in result.tokens:
            self.got[token.stream] = self.got.get(token.stream, 0) + 1
            self.first_at.setdefault(token.stream, now)
            if self.got[token.stream] == self.lengths[token.stream]:
                self.engine.finish(token.stream)  # nothing if it has ended by itself
                self.ended_at[token.stream] = now


class PreemptionBenchmark:
    """One model and its runner."""

    def __init__(self, runner: Runner, args: argparse.Namespace) -> None:
        self._runner = runner
        self._args = args
        self._random = random.Random(7)

    def urgent(self, urgency: Urgency) -> tuple[float, float]:
        """Return the time to first token of a request beside streams of low urgency, and when the last of them
        ended."""
        slots = self._runner.capabilities.slots
        served = self._served(RESERVED_ROWS, None)
        for index in range(slots):
            served.submit(self._prompt(), self._args.stream_tokens + 8 * index, LOW, bounded=True)
        while len(served.first_at) < slots:
            served.step()
        for _ in range(8):
            served.step()
        asked_at = served.now()
        stream = served.submit(self._prompt(), SHORTEST, urgency, bounded=True)
        while not served.engine.idle:
            served.step()
        return served.first_at[stream] - asked_at, max(served.ended_at.values())

    def oversubscribed(self, reserved_rows: int) -> tuple[float, float]:
        """Return the tokens a second of requests without `max_tokens`, and the number of preemptions."""
        served = self._served(reserved_rows, self._args.pool)
        lengths = random.Random(3)
        for _ in range(self._args.requests):
            served.submit(self._prompt(), lengths.randint(SHORTEST, self._args.longest), NORMAL, bounded=False)
        while not served.engine.idle:
            served.step()
        return sum(served.got.values()) / served.now(), served.engine.gauges().preemptions

    def _served(self, reserved_rows: int, pool: int | None) -> TimedEngine:
        engine = BatchEngine(
            self._runner,
            max_queue=1 << 20,
            step_tokens=None,
            kv_tokens=pool,
            prefixes=PrefixPolicy(),
            reserved_rows=reserved_rows,
        )
        for slot in range(self._runner.capabilities.slots):  # the engine before left retained rows
            self._runner.reset(slot)
        return TimedEngine(engine)

    def _prompt(self) -> tuple[int, ...]:
        return tuple(self._random.choices(TOKENS, k=PROMPT))


def medians(rounds: int, measures: Sequence[Callable[[], tuple[float, float]]]) -> list[tuple[float, float]]:
    """Run measures in turn, and return the medians of each one's two figures."""
    found: list[list[tuple[float, float]]] = [[] for _ in measures]
    for _ in range(rounds):
        for each, measure in zip(found, measures, strict=True):
            each.append(measure())
    return [(statistics.median(one for one, _ in each), statistics.median(two for _, two in each)) for each in found]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    add_quantize(parser)
    add_cache_dir(parser)
    parser.add_argument("--slots", type=at_least(1), default=8, help="of the engine, all of them busy")
    parser.add_argument("--context", type=at_least(256), default=2048, help="tokens of a slot")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="of which medians are shown")
    parser.add_argument("--stream-tokens", type=at_least(32), default=256, help="of the shortest of the long streams")
    parser.add_argument("--requests", type=at_least(1), default=24, help="that share the pool")
    parser.add_argument("--longest", type=at_least(SHORTEST), default=512, help="tokens of the longest answer")
    parser.add_argument("--pool", type=at_least(256), default=4096, help="rows of the pool, one context at least")
    smoke = {
        "model": "tiny",
        "slots": SMOKE_SLOTS,
        "context": SMOKE_CONTEXT,
        "rounds": 1,
        "stream_tokens": 32,
        "requests": 3,
        "longest": 24,
        "pool": SMOKE_CONTEXT,
    }
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    path = make_model(args.cache_dir, args.model)
    setup = Setup(path, args.cache_dir / "graphs", args.slots, args.context, quantize=args.quantize)
    runner = load_settled(setup.spec())
    bench = PreemptionBenchmark(runner, args)
    print(f"{args.model} {args.quantize or 'bf16'}, {args.slots} slots, context {args.context}")
    waits, takes = medians(args.rounds, [lambda: bench.urgent(LOW), lambda: bench.urgent(HIGH)])
    for name, (first, end) in (("waits", waits), ("preempts", takes)):
        print(f"{name:10} first token after {1000 * first:8.1f} ms, the last stream ends after {1000 * end:8.0f} ms")
    whole = args.context
    full, growing = medians(
        args.rounds, [lambda: bench.oversubscribed(whole), lambda: bench.oversubscribed(RESERVED_ROWS)]
    )
    print(f"{args.requests} requests without max_tokens, a pool of {args.pool} rows")
    for rows, (rate, count) in ((whole, full), (RESERVED_ROWS, growing)):
        print(f"{rows:6} rows reserved {rate:10.1f} tokens/s {count:6.0f} preemptions")
    runner.close()


if __name__ == "__main__":
    main()
