"""What running streams feel while a long prompt is admitted: delays between tokens, in milliseconds.

    python bench/pace.py [--model 110m] [--streams 4] [--prompt 4096] [--tokens 120]

`streams` sequences decode; in the middle of it a prompt of `prompt` tokens comes. Measured are the delays between the
tokens of each running stream, from the prompt's submission to its first token (for `alone`, over as many tokens), and
the prompt's own time to its first token: without the prompt, with the default budget, with a fixed budget of 512
tokens, and with none. Then the same prompt again, as its next turn: its rows are taken from its slot.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.command_line import at_least, command_line
from bench.ours import Engine, Setup
from bench.shapes import SHAPES, default_cache, make_model
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest

NO_BUDGET = 1 << 20
WARM_UP = 24
"""Steps before anything counts, in which the budget learns what decode steps cost."""


@dataclass
class Run:
    """One run: the delays that running streams saw, and when the prompt had its first token."""

    delays: list[float] = field(default_factory=list)
    first_token_s: float = 0.0
    cached: int = 0

    def line(self, name: str) -> str:
        """Milliseconds at the median, the 99th percentile and the most, and the prompt's seconds."""
        if len(self.delays) < 2:
            return f"{name:<22}  fewer than two tokens came meanwhile: it takes a longer --prompt"
        cuts = statistics.quantiles(self.delays, n=100)
        shown = [1e3 * value for value in (cuts[49], cuts[98], max(self.delays))]
        prompt = f"{self.first_token_s:8.2f}" if self.first_token_s else "       -"
        return f"{name:<22}" + "".join(f"{value:9.1f}" for value in shown) + f"  {prompt}  {self.cached:6}"


class Streams:
    """Sequences that decode, and the clock of each."""

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

    def alone(self, tokens: int) -> Run:
        """Delays over `tokens` steps."""
        run = Run()
        for _ in range(tokens):
            run.delays += self.step()
        return run

    def beside(self, prompt: tuple[int, ...]) -> Run:
        """Delays while a prompt is admitted."""
        stream, self._next = self._next, self._next + 1
        before = self._engine.gauges().prefix_tokens
        run, began = Run(), time.perf_counter()
        self._engine.submit(EngineRequest(stream, prompt, max_tokens=8))
        while stream not in self.first:
            run.delays += self.step()
        run.first_token_s = self.first[stream] - began
        run.cached = self._engine.gauges().prefix_tokens - before
        while self._engine.gauges().slots_active > len(self._running):
            self.step()
        return run

    def close(self) -> None:
        """End the streams, and forget what they left."""
        for stream in self._running:
            self._engine.cancel(stream)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", choices=sorted(SHAPES), default="110m", help="the shape, of random weights")
    parser.add_argument("--streams", type=at_least(1), default=4, help="that decode")
    parser.add_argument(
        "--prompt", type=at_least(1), default=4096, help="tokens of the prompt that is admitted meanwhile"
    )
    parser.add_argument("--tokens", type=at_least(1), default=120, help="of each stream")
    parser.add_argument("--cache-dir", type=Path, default=default_cache(), help="keeps compiled graphs and made models")
    args = parser.parse_args()
    setup = Setup(
        make_model(args.cache_dir, args.model), args.cache_dir / "graphs", args.streams + 1, args.prompt + 512
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
            print(streams.beside((*prompt, *loaded.prompt(64))).line("its next turn"), flush=True)
        streams.close()
        for slot in range(args.streams + 1):
            loaded.runner.reset(slot)
    loaded.close()


if __name__ == "__main__":
    main()
