"""Decoding with LoRA adapters that requests choose, beside a runner without any, on the same random-weight model.

    python bench/overhead/adapters.py [--model 110m] [--streams 1 8] [--adapters 2] [--rank 16] [--quantize int8]

`without` is a runner without adapters. `unused` has them loaded, and no row has one. In `used` the rows have them in
turn, and in `half` every other row has none. Adapters change all matrices of attention and of the MLP. Tokens per
second of the fastest steps of the rounds, in which the subjects take turns; ratios are to `without`.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from msgspec.structs import replace

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Setup
from bench.harness.options import SMOKE_CONTEXT, add_cache_dir, add_model, add_quantize
from bench.harness.settled import load_settled
from bench.harness.shapes import TOKENS, make_model
from protocol.request import Sampling
from tests.workers.checkpoints.lora.lora_files import make_lora
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.sampling.sample_spec import SampleSpec

PROMPT = 32
GREEDY = SampleSpec(Sampling(), 0)


@dataclass(frozen=True, slots=True)
class Subject:
    """A runner, and the adapters that its rows have in turn."""

    name: str
    runner: Runner
    adapters: tuple[int, ...]

    def step_s(self, streams: int, steps: int) -> float:
        """Return the seconds of the median step of so many rows."""
        rows = [self.adapters[slot % len(self.adapters)] for slot in range(streams)]
        for slot, adapter in enumerate(rows):
            self.runner.reset(slot)
            tokens = tuple(TOKENS[(slot + at) % len(TOKENS)] for at in range(PROMPT))
            self.runner.prefill([Chunk(slot, tokens, 0, 0, adapter=adapter)], [None])
        stamps = [time.perf_counter()]
        for at in range(PROMPT, PROMPT + steps):
            self.runner.decode([DecodeRow(slot, TOKENS[0], at, at, GREEDY, each) for slot, each in enumerate(rows)])
            stamps.append(time.perf_counter())
        return statistics.median(after - before for before, after in itertools.pairwise(stamps))


def measure(args: argparse.Namespace, scratch: Path) -> list[str]:
    """Return the lines of the table."""
    path, most = make_model(args.cache_dir, args.model), max(args.streams)
    setup = Setup(
        path, args.cache_dir, most, SMOKE_CONTEXT, dtype=args.dtype, quantize=args.quantize, backend=args.backend
    )
    spec = setup.spec()
    modules = {f"a{n}": str(make_lora(scratch / f"a{n}", path, rank=args.rank, seed=n)) for n in range(args.adapters)}
    adapted_spec = replace(spec, lora_modules=modules, max_lora_rank=args.rank)
    adapted, plain = (load_settled(each) for each in (adapted_spec, spec))
    every = tuple(range(1, args.adapters + 1))
    half = tuple(itertools.chain.from_iterable((number, 0) for number in every))
    subjects = [Subject("without", plain, (0,)), Subject("unused", adapted, (0,)), Subject("used", adapted, every)]
    subjects += [Subject("half", adapted, half)] if most > 1 else []
    for subject in subjects:  # graphs that are compiled when they are first missed
        for streams in args.streams:
            subject.step_s(streams, 1)
        subject.runner.settle()
    best: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _ in range(args.rounds):
        for streams, subject in itertools.product(args.streams, subjects):
            best[subject.name, streams].append(subject.step_s(streams, args.steps))
    lines = []
    for streams, subject in itertools.product(args.streams, subjects):
        rate, base = (streams / min(best[name, streams]) for name in (subject.name, "without"))
        lines.append(f"{streams:7} {subject.name:8} {rate:10.1f} {rate / base:7.2f}x")
    for runner in (plain, adapted):
        runner.close()
    return lines


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    add_quantize(parser)
    add_cache_dir(parser)
    parser.add_argument("--backend", default="iree", choices=("iree", "mlx"), help="iree or mlx")
    parser.add_argument("--dtype", default="bfloat16", help="float32, bfloat16 or float16")
    parser.add_argument("--streams", type=at_least(1), nargs="+", default=[1, 8], help="rows of a step")
    parser.add_argument("--adapters", type=at_least(1), default=2, help="adapters that are loaded")
    parser.add_argument("--rank", type=at_least(1), default=16, help="rank of each")
    parser.add_argument("--steps", type=at_least(2), default=60, help="steps of a round")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="repetitions of all subjects in turn")
    return parsed(parser, words, smoke={"model": "tiny", "streams": [1, 2], "steps": 4, "rounds": 1})


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    print(f"{'streams':>7} {'adapters':8} {'tokens/s':>10} {'ratio':>8}")
    with tempfile.TemporaryDirectory() as scratch:
        print("\n".join(measure(args, Path(scratch))))


if __name__ == "__main__":
    main()
