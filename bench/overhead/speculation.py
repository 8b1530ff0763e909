"""Tokens a second with speculative decoding and without, by how much of the answer repeats what came before.

    python bench/overhead/speculation.py [--model 110m] [--quantize int4] [--backend mlx] [--streams 1 4 8] [--rounds 5]

The weights are random, so the answers are given: a mask leaves one token at each position, and the drafts are those of
prompt lookup, which knows the tokens so far. `quote` copies passages of 96 tokens from a prompt of 512, with 8 tokens
between them; `records` repeats 12 of 18 tokens, like JSON objects with the same keys; `edit` copies the prompt with
every 24th token changed; `chat` has random tokens of 200 kinds, which repeat by chance only. Each is measured with and
without drafts in turn, in the same process; figures are medians over the rounds, the ratio that of pairs.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Setup
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_backend, add_cache_dir, add_model, add_quantize
from bench.harness.shapes import TOKENS, make_model
from protocol.events import Gauges
from protocol.request import Sampling
from workers.engine.engine import BatchEngine
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner
from workers.engine.speculation.speculator import Speculator
from workers.process.backends import load_runner

CONTEXT = 1024
PROMPT = 512
KINDS = range(3, 203)
LOADS = ("quote", "records", "edit", "chat")


class GivenAnswer:
    """Implements `workers.engine.request.Constraint`: the answer is given."""

    ended = False

    def __init__(self, answer: Sequence[int], vocab_size: int, at: int = 0) -> None:
        self._answer = answer
        self._words = -(-vocab_size // 32)
        self._at = at

    def accept(self, token: int) -> None:
        """Append a token. A drafted one may be wrong, and is not sampled after."""
        self._at += 1

    def fork(self) -> "GivenAnswer":
        """Return a copy."""
        return GivenAnswer(self._answer, 32 * self._words, self._at)

    def forced(self) -> tuple[int, ...]:
        """Return no token: prompt lookup alone is measured."""
        return ()

    def mask(self) -> NDArray[np.uint32]:
        """Return the next token."""
        words = np.zeros(self._words, np.uint32)
        token = self._answer[min(self._at, len(self._answer) - 1)]
        words[token // 32] = 1 << token % 32
        return words


def sequence(load: str, length: int, randomness: random.Random) -> tuple[list[int], list[int]]:
    """Return a prompt and the answer to it."""
    kinds = KINDS if load == "chat" else TOKENS
    prompt = randomness.choices(kinds, k=PROMPT)
    answer: list[int] = []
    keys = randomness.choices(kinds, k=12)
    while len(answer) < length:
        if load == "quote":
            start = randomness.randrange(PROMPT - 96)
            answer += [*prompt[start : start + 96], *randomness.choices(kinds, k=8)]
        elif load == "records":
            answer += [*keys[:6], *randomness.choices(kinds, k=3), *keys[6:], *randomness.choices(kinds, k=3)]
        elif load == "edit":
            answer += [*prompt[len(answer) : len(answer) + 23], randomness.choice(kinds)]
        else:
            answer += randomness.choices(kinds, k=24)
    return prompt, answer[:length]


def rate(
    runner: Runner, load: str, streams: int, tokens: int, speculator: Speculator | None, seed: int
) -> tuple[float, Gauges]:
    """Return the tokens a second of streams that all decode."""
    engine = BatchEngine(
        runner, max_queue=0, step_tokens=1 << 20, prefixes=PrefixPolicy(enabled=False), speculator=speculator
    )
    randomness, vocab = random.Random(seed), runner.capabilities.vocab_size
    for stream in range(streams):
        prompt, answer = sequence(load, tokens, randomness)
        constraint = GivenAnswer(answer, vocab)
        engine.submit(EngineRequest(stream, tuple(prompt), Sampling(), tokens, constraint=constraint))
    begun: set[int] = set()
    while len(begun) < streams:
        begun |= {token.stream for token in engine.step().tokens}
    before, began = engine.gauges().decode_tokens, time.perf_counter()
    while not engine.idle:
        if failures := engine.step().failures:
            raise RuntimeError(failures[0].text)
    return (engine.gauges().decode_tokens - before) / (time.perf_counter() - began), engine.gauges()


def measure(runner: Runner, load: str, streams: int, tokens: int, rounds: int) -> str:
    """Return a line of the table."""
    pairs, gauges = [], Gauges()
    speculator = Speculator(runner.capabilities)
    for seed in range(-1, rounds):
        off, _ = rate(runner, load, streams, tokens, None, seed)
        on, gauges = rate(runner, load, streams, tokens, speculator, seed)
        if seed >= 0:  # the first ones may wait for graphs
            pairs.append((off, on))
        else:
            runner.settle()
    off, on = (statistics.median(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(on / off for off, on in pairs)
    accepted = gauges.accepted_tokens / gauges.draft_tokens if gauges.draft_tokens else 0.0
    return f"{load:8} {streams:3} {off:10.1f} {on:10.1f} {ratio:8.2f} {gauges.draft_tokens:8} {accepted:9.0%}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    add_quantize(parser)
    add_backend(parser)
    parser.add_argument("--streams", type=at_least(1), nargs="+", default=[1, 4, 8], help="at once")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS), help="what the answers repeat")
    parser.add_argument("--max-tokens", type=at_least(2), default=200, help="tokens of an answer")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="runs of each, in turn; medians are printed")
    add_cache_dir(parser)
    return parsed(parser, words, smoke={"model": "tiny", "streams": [1], "max_tokens": 40, "rounds": 1})


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    configure_logging("bench", "warning")
    slots, context = (SMOKE_SLOTS, SMOKE_CONTEXT) if args.smoke else (8, CONTEXT)
    made = make_model(args.cache_dir, args.model)
    setup = Setup(made, args.cache_dir, slots, context, quantize=args.quantize, backend=args.backend)
    runner = load_runner(setup.spec(), lambda *_: None)
    try:
        runner.settle()
        print("load     streams  off tok/s   on tok/s    ratio  drafted  accepted")
        for load in args.loads:
            for streams in args.streams:
                print(measure(runner, load, streams, args.max_tokens, args.rounds), flush=True)
    finally:
        runner.close()


def main() -> None:
    run(arguments())


if __name__ == "__main__":
    main()
