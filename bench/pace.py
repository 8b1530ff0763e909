"""Inter-token latency of running streams while a long prompt is admitted, in milliseconds.

    python bench/pace.py [--model 110m] [--streams 4] [--prompt 4096] [--tokens 120]

--streams sequences decode while a prompt of --prompt tokens arrives. Measured are the delays between the tokens of each
running stream, from the prompt's submission to its first token, and the prompt's own time to its first token: with the
default budget of a step, with a fixed budget of 512 tokens, and with none. `alone` are the delays of --tokens steps
without the prompt, to compare with. `next turn` is the same prompt and some more: its KV is taken from its slot.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Engine, Setup
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_model
from bench.harness.shapes import make_model
from cli.chaos.rounds import percentile
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest

NO_BUDGET = 1 << 20
ANSWER = 512
"""Rows of a slot beyond the prompt."""
WARM_UP = 24
"""Steps before the measurement, from which the budget learns the cost of decode steps."""


@dataclass
class PromptRun:
    """One run: the delays of running streams, and the prompt's time to first token."""

    delays: list[float] = field(default_factory=list)
    first_token_s: float = 0.0
    cached: int = 0

    def line(self, name: str) -> str:
        """Milliseconds at the median, the 99th percentile and the maximum, and the prompt's seconds."""
        median, high = percentile(self.delays, 0.5), percentile(self.delays, 0.99)
        if median is None or high is None:
            return f"{name:<22}  no token came meanwhile: choose a longer --prompt"
        shown = [1e3 * value for value in (median, high, max(self.delays))]
        prompt = f"{self.first_token_s:8.3f}" if self.first_token_s else "       -"
        return f"{name:<22}" + "".join(f"{value:9.2f}" for value in shown) + f"  {prompt}  {self.cached:6}"


class Streams:
    """Sequences that decode, and when each had its last token."""

    def __init__(self, engine: BatchEngine, prompts: Sequence[tuple[int, ...]]) -> None:
        self._engine = engine
        self._last: dict[int, float] = {}
        self._next = len(prompts) + 1
        self.first: dict[int, float] = {}
        self._running = range(1, len(prompts) + 1)
        for stream, prompt in zip(self._running, prompts, strict=True):
            engine.submit(EngineRequest(stream, prompt))
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> list[float]:
        """Run a step; the delays of the running streams that got a token in it."""
        result = self._engine.step()
        if result.failures:
            raise RuntimeError(result.failures[0].text)
        now, delays = time.perf_counter(), []
        for token in result.tokens:
            self.first.setdefault(token.stream, now)
            if token.stream in self._running:
                if token.stream in self._last:
                    delays.append(now - self._last[token.stream])
                self._last[token.stream] = now
        return delays

    def alone(self, tokens: int) -> PromptRun:
        """Delays over `tokens` steps."""
        run = PromptRun()
        for _ in range(tokens):
            run.delays += self.step()
        return run

    def beside(self, prompt: tuple[int, ...]) -> PromptRun:
        """Delays while a prompt is admitted."""
        stream, self._next = self._next, self._next + 1
        before = self._engine.gauges().prefix_tokens
        run, began = PromptRun(), time.perf_counter()
        self._engine.submit(EngineRequest(stream, prompt, max_tokens=8))
        while stream not in self.first:
            run.delays += self.step()
        run.first_token_s = self.first[stream] - began
        run.cached = self._engine.gauges().prefix_tokens - before
        while self._engine.gauges().slots_active > len(self._running):
            self.step()
        return run

    def close(self) -> None:
        """Cancel the streams."""
        for stream in self._running:
            self._engine.cancel(stream)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    parser.add_argument("--streams", type=at_least(1), default=4, help="that decode")
    parser.add_argument(
        "--prompt", type=at_least(1), default=4096, help="tokens of the prompt that is admitted meanwhile"
    )
    parser.add_argument("--tokens", type=at_least(1), default=120, help="of each stream, alone")
    add_cache_dir(parser)
    smoke = {"model": "tiny", "streams": SMOKE_SLOTS - 1, "prompt": SMOKE_CONTEXT - ANSWER, "tokens": 10}
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    setup = Setup(
        make_model(args.cache_dir, args.model), args.cache_dir / "graphs", args.streams + 1, args.prompt + ANSWER
    )
    loaded = Engine.load(setup)
    short = [loaded.prompt(24) for _ in range(args.streams)]
    print(f"{args.model}, {args.streams} streams, a prompt of {args.prompt} tokens; delays in ms, first token in s")
    print(f"{'':<22}{'p50':>9}{'p99':>9}{'most':>9}  {'first':>8}  {'cached':>6}")
    for name, budget in (("default budget", None), ("512 tokens a step", 512), ("no budget", NO_BUDGET)):
        engine = BatchEngine(loaded.runner, max_queue=8, step_tokens=budget, prefixes=PrefixPolicy(max_rows=1 << 20))
        streams = Streams(engine, short)
        if budget is None:
            print(streams.alone(args.tokens).line("alone"), flush=True)
        prompt = loaded.prompt(args.prompt)
        print(streams.beside(prompt).line(name), flush=True)
        if budget is None:
            print(streams.beside((*prompt, *loaded.prompt(64))).line("next turn"), flush=True)
        streams.close()
        for slot in range(args.streams + 1):
            loaded.runner.reset(slot)
    loaded.close()


if __name__ == "__main__":
    main()
