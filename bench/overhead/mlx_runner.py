"""Decode on the MLX runner beside mlx-lm itself, on the same random-weight model in the same run.

    python bench/overhead/mlx_runner.py [--model DIR] [--rows 1,4,8] [--tokens 64] [--prompt 32] [--spread 0]
        [--dtype float32]

`mlx-lm` is `mlx_lm.generate.generate_step`, one sequence, as a script would use it; `mlx-lm N` is its
`BatchGenerator` with N sequences, and `rows N` is one ragged step of N sequences at a time. With `--spread` each
prompt is so many tokens longer than the one before. The model is of a 15M Llama shape unless a directory is given.
Tokens per second of wall time over the median step, by the median of the rounds, in which the subjects take turns;
nothing else should run on the machine. The exit status is 1 if the tokens differ.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.utils import load_model

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, levels, parsed
from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Chunk, DecodeRow, NotFiniteError
from workers.load_options import LoadOptions
from workers.mlx.modules.parts import cast_parameters
from workers.mlx.runner import MlxRunner
from workers.sampling.sample_spec import SampleSpec

GREEDY = Sampling()


Prompts = list[tuple[int, ...]]


def bench_mlx_lm(model: Any, prompt: tuple[int, ...], count: int) -> tuple[float, list[int]]:
    """Seconds of the median step of mlx-lm's own generation, and its tokens."""
    tokens, stamps = [], []
    for token, _ in generate_step(mx.array(prompt), model, max_tokens=count):
        tokens.append(int(token))
        stamps.append(time.perf_counter())
    return _median_step(stamps), tokens


def bench_batch(model: Any, prompts: Prompts, count: int) -> tuple[float, list[list[int]]]:
    """Seconds of the median step of mlx-lm's batch generator, and the tokens of each sequence."""
    rows = len(prompts)
    # A batch loses the sequences that are done; one token more keeps all in every step that is measured.
    generator = BatchGenerator(model, max_tokens=count + 1, completion_batch_size=rows, prefill_batch_size=rows)
    tokens: dict[int, list[int]] = {uid: [] for uid in generator.insert([list(prompt) for prompt in prompts])}
    stamps = []
    while any(len(row) < count for row in tokens.values()):
        _, generated = generator.next()
        for row in generated:
            tokens[row.uid].append(row.token)
        if len(generated) == rows:
            stamps.append(time.perf_counter())
    generator.close()
    return _median_step(stamps), [row[:count] for row in tokens.values()]


def bench_rows(runner: MlxRunner, prompts: Prompts, count: int) -> tuple[float, list[list[int]]]:
    """Seconds of the median step of sequences that decode together, and the tokens of each."""
    tokens: list[list[int]] = []
    for slot, prompt in enumerate(prompts):
        runner.reset(slot)
        (first,) = runner.prefill([Chunk(slot, prompt, 0, 0)], [SampleSpec(GREEDY, len(prompt))])
        tokens.append([] if first is None else [first])
    stamps = [time.perf_counter()]
    for done in range(count - 1):
        starts = [len(prompt) + done for prompt in prompts]
        step = [DecodeRow(slot, tokens[slot][-1], at, at, SampleSpec(GREEDY, at + 1)) for slot, at in enumerate(starts)]
        for slot, token in enumerate(runner.decode(step)):
            if token is None:
                raise NotFiniteError
            tokens[slot].append(token)
        stamps.append(time.perf_counter())
    return _median_step(stamps), tokens


def _median_step(stamps: list[float]) -> float:
    return statistics.median(after - before for before, after in itertools.pairwise(stamps))


def measure(args: argparse.Namespace, path: Path, scratch: Path) -> tuple[dict[str, float], bool]:
    """Tokens a second by name, and whether all generated the same ones."""
    most = max(args.rows)
    prompts = [tuple(3 + 7 * index % 500 for index in range(args.prompt + args.spread * row)) for row in range(most)]
    options = LoadOptions(
        device=args.device,
        slots=most,
        context=len(prompts[-1]) + args.tokens,
        cache_dir=scratch,
        dtype=args.dtype,
    )
    runner = MlxRunner.load(path, ModelConfig.from_dir(path), options, lambda phase, done, total: None)
    with mx.stream(mx.Device(getattr(mx, runner.capabilities.device))):
        model, _ = load_model(path)
        cast_parameters(model, getattr(mx, runner.capabilities.dtype))
        expected = [bench_mlx_lm(model, prompt, args.tokens)[1] for prompt in prompts]
    seconds: dict[str, list[float]] = defaultdict(list)
    differing: set[str] = set()

    def note(name: str, result: tuple[float, list[list[int]]], rows: int = 1) -> None:
        seconds[name].append(result[0] / rows)
        if result[1] != expected[:rows]:
            differing.add(name)

    for _ in range(args.rounds):
        with mx.stream(mx.Device(getattr(mx, runner.capabilities.device))):
            step, tokens = bench_mlx_lm(model, prompts[0], args.tokens)
            note("mlx-lm", (step, [tokens]))
            for rows in args.rows:
                note(f"mlx-lm {rows}", bench_batch(model, prompts[:rows], args.tokens), rows)
        for rows in args.rows:
            note(f"rows {rows}", bench_rows(runner, prompts[:rows], args.tokens), rows)
    runner.close()
    for name in sorted(differing):
        print(f"{name}: tokens differ from those of mlx-lm's generate_step", file=sys.stderr)
    return {name: 1 / statistics.median(each) for name, each in seconds.items()}, not differing


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--model", type=Path, help="a checkpoint; a made one unless given")
    parser.add_argument("--rows", type=levels, default="1,4,8", help="sequences at once, separated by commas")
    parser.add_argument("--tokens", type=at_least(2), default=64, help="generated by each sequence")
    parser.add_argument("--prompt", type=at_least(1), default=32, help="tokens of the first prompt")
    parser.add_argument("--spread", type=at_least(0), default=0, help="tokens that each prompt is longer by")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="repetitions of all subjects in turn")
    parser.add_argument("--device", default="cpu", help="cpu or gpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parsed(parser, words, smoke={"rows": "1,2", "tokens": 4, "rounds": 1})


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    with tempfile.TemporaryDirectory() as scratch:
        path = args.model or make_checkpoint(
            Path(scratch), layers=8, hidden=256, head_dim=64, ffn=768, vocab=16384, tied=False
        )
        results, same = measure(args, path, Path(scratch))
    if args.json:
        print(json.dumps({name: round(value, 1) for name, value in results.items()}))
    else:
        for name, value in results.items():
            print(f"{name:<10}{value:10.1f} tok/s")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
