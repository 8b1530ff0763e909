"""Time to first token of short prompts that arrive at once, in milliseconds: the first, the median and the last.

    python bench/burst.py [--model 110m] [--prompts 1 8 32] [--lengths 16 64] [--running 0] [--rounds 5]

Each number of --prompts, of random lengths within --lengths, is submitted together to an engine in which --running
sequences decode; no part of them is in a prefix cache. Shown are medians over the rounds, and prompt tokens a second.
There is neither a peer nor a limit.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Engine, Setup
from bench.harness.options import SMOKE_CONTEXT, add_cache_dir, add_model, add_quantize
from bench.harness.shapes import make_model
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest

ANSWER = 512
"""Tokens that a running sequence may reach."""


class Burst:
    """Rounds of prompts over one engine."""

    def __init__(self, loaded: Engine, most: int, running: int, longest: int) -> None:
        self._engine = BatchEngine(loaded.runner, max_queue=most, step_tokens=None)
        self._loaded = loaded
        self._streams = 0
        for _ in range(running):
            self._submit(longest, ANSWER)
        for _ in range(running and 24):  # the budget learns what decode steps cost
            self._engine.step()

    def round(self, lengths: list[int]) -> list[float]:
        """Seconds from the submission of prompts of these lengths to the first token of each, in rising order."""
        began = time.perf_counter()
        waiting = {self._submit(length, 1) for length in lengths}
        seconds: list[float] = []
        while waiting:
            result = self._engine.step()
            if result.failures:
                raise RuntimeError(result.failures[0].text)
            mine = {token.stream for token in result.tokens} & waiting
            seconds += [time.perf_counter() - began] * len(mine)
            waiting -= mine
        return seconds

    def _submit(self, length: int, tokens: int) -> int:
        self._streams += 1
        self._engine.submit(EngineRequest(self._streams, self._loaded.prompt(length), max_tokens=tokens))
        return self._streams


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    add_quantize(parser)
    parser.add_argument("--prompts", nargs="+", type=at_least(1), default=[1, 8, 32], help="how many come at once")
    parser.add_argument(
        "--lengths", nargs=2, type=at_least(1), default=[16, 64], help="tokens of the shortest and the longest prompt"
    )
    parser.add_argument("--running", type=at_least(0), default=0, help="streams that decode meanwhile")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="bursts of each size; medians are printed")
    add_cache_dir(parser)
    lengths = [16, SMOKE_CONTEXT - ANSWER]
    args = parsed(parser, words, smoke={"model": "tiny", "prompts": [1], "lengths": lengths, "running": 1, "rounds": 1})
    low, high = args.lengths
    if low > high:
        parser.error(f"argument --lengths: the shortest prompt, {low} tokens, is longer than the longest, {high}")
    return args


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    low, high = args.lengths
    slots = max(args.prompts) + args.running
    path, graphs = make_model(args.cache_dir, args.model), args.cache_dir / "graphs"
    loaded = Engine.load(Setup(path, graphs, slots, high + ANSWER, quantize=args.quantize))
    chosen = random.Random(0)
    print(f"{args.model} {args.quantize or 'bf16'}, prompts of {low} to {high} tokens, {args.running} running; ms")
    print(f"{'prompts':>8}{'tokens':>8}{'first':>9}{'median':>9}{'last':>9}{'tokens/s':>10}")
    burst = Burst(loaded, max(args.prompts), args.running, high)
    for count in args.prompts:
        lengths = [chosen.randint(low, high) for _ in range(count)]
        burst.round(lengths)  # the first may load what it needs
        rounds = [burst.round(lengths) for _ in range(args.rounds)]
        shown = [statistics.median(pick(each) for each in rounds) for pick in (min, statistics.median, max)]
        cells = "".join(f"{1e3 * value:9.1f}" for value in shown)
        print(f"{count:8}{sum(lengths):8}{cells}{sum(lengths) / shown[-1]:10.0f}", flush=True)
    loaded.close()


if __name__ == "__main__":
    main()
