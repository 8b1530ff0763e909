"""Decode on the MLX runner beside mlx-lm itself, on the same random-weight model in the same run.

    python bench/mlx_runner.py [--model DIR] [--rows 1,8] [--tokens 64] [--prompt 32] [--device cpu] [--json]

`mlx-lm` is `mlx_lm.generate.generate_step`, one sequence, as a script would use it; `rows N` is one ragged step of
N sequences at a time. The model is of the 15M Llama shape unless a directory is given. Tokens per second of wall time
over the median step; nothing else should run on the machine.
"""

import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from bench.command_line import at_least, command_line, levels
from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Chunk, DecodeRow, NotFiniteError
from workers.mlx.runner import MlxRunner
from workers.sampling.sample_spec import SampleSpec

GREEDY = Sampling()


def bench_mlx_lm(path: Path, prompt: tuple[int, ...], count: int) -> tuple[float, list[int]]:
    """(seconds of the median step, tokens) of mlx-lm's own generation."""
    model, _ = load_model(path)
    tokens, stamps = [], []
    for token, _ in generate_step(mx.array(prompt), model, max_tokens=count):
        tokens.append(int(token))
        stamps.append(time.perf_counter())
    return _median_step(stamps), tokens


def bench_rows(runner: MlxRunner, prompt: tuple[int, ...], rows: int, count: int) -> tuple[float, list[list[int]]]:
    """(seconds of the median step, tokens by row) of `rows` sequences that decode together."""
    tokens: list[list[int]] = []
    for slot in range(rows):
        runner.reset(slot)
        (first,) = runner.prefill([Chunk(slot, prompt, 0, 0)], [SampleSpec(GREEDY, len(prompt))])
        tokens.append([] if first is None else [first])
    stamps = [time.perf_counter()]
    for start in range(len(prompt), len(prompt) + count - 1):
        step = [DecodeRow(slot, tokens[slot][-1], start, start, SampleSpec(GREEDY, start + 1)) for slot in range(rows)]
        for slot, token in enumerate(runner.decode(step)):
            if token is None:
                raise NotFiniteError
            tokens[slot].append(token)
        stamps.append(time.perf_counter())
    return _median_step(stamps), tokens


def _median_step(stamps: list[float]) -> float:
    return statistics.median(after - before for before, after in itertools.pairwise(stamps))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", type=Path, help="a checkpoint; without, a made one")
    parser.add_argument("--rows", type=levels, default="1,8", help="sequences at once, separated by commas")
    parser.add_argument("--tokens", type=at_least(2), default=64, help="steps that are timed")
    parser.add_argument("--prompt", type=at_least(1), default=32, help="tokens of each prompt")
    parser.add_argument("--device", default="cpu", help="cpu or gpu")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = arguments.model or make_checkpoint(
            Path(scratch), layers=8, hidden=256, head_dim=64, ffn=768, vocab=16384, tied=False
        )
        config = ModelConfig.from_dir(path)
        prompt = tuple(3 + 7 * index % 500 for index in range(arguments.prompt))
        runner = MlxRunner.load(
            path,
            config,
            device=arguments.device,
            dtype="auto",
            slots=max(arguments.rows),
            context=arguments.prompt + arguments.tokens,
            cache_dir=Path(scratch),
            threads=0,
            progress=lambda phase, done, total: None,
        )
        with mx.stream(mx.Device(getattr(mx, runner.capabilities.device))):
            seconds, expected = bench_mlx_lm(path, prompt, arguments.tokens)
        results = {"mlx-lm": 1 / seconds}
        for rows in arguments.rows:
            seconds, tokens = bench_rows(runner, prompt, rows, arguments.tokens)
            results[f"rows {rows}"] = rows / seconds
            if tokens != [expected] * rows:
                print(f"rows {rows}: tokens differ from mlx-lm's")
        runner.close()
    if arguments.json:
        print(json.dumps({name: round(value, 1) for name, value in results.items()}))
    else:
        for name, value in results.items():
            print(f"{name:<10}{value:10.1f} tok/s")


if __name__ == "__main__":
    main()
