"""A quantized KV cache against one of the model's type: tokens a second, the cost of prompts, and the error.

    python bench/overhead/kv_precision.py [--model 110m] [--quantize int8] [--kv-dtypes int8] [--contexts 4096 32768]

For each context one row decodes, and a chunk of 512 tokens is computed, at the end of so many rows: the same 512 rows
again and again, whose values do not matter to the time. All types are measured in turn, in the same process; figures
are the fastest of all rounds, which other load of the machine changes least, and ratios are those of these. They
include the rest of the model, whose weights are read in each step.

The error is that of the built-in model on the questions of its evaluation, 600 tokens at a time: the logits'
differences, how often the most likely token is the same, the Kullback-Leibler divergence, and the perplexity.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from tokenizers import Tokenizer

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Setup
from bench.harness.options import SMOKE_CONTEXT, add_cache_dir, add_model, add_quantize
from bench.harness.settled import load_settled
from bench.harness.shapes import TOKENS, make_model
from models import builtin_path
from models.corpus.held_out import questions
from models.evaluate import prompt_text
from protocol.request import Sampling
from workers.engine.runner import Chunk, DecodeRow, Runner
from workers.sampling.sample_spec import SampleSpec

CHUNK = 512
TEXT_TOKENS = 600
"""Tokens of the evaluation's text that are scored at once."""
GREEDY = SampleSpec(Sampling(), 0)


@dataclass(slots=True)
class Measured:
    """A runner with one type of KV cache, and the milliseconds of its rounds."""

    kind: str
    runner: Runner

    def fill(self, rows: int) -> None:
        """Fill slot 0 with the same rows again and again."""
        self.runner.reset(0)
        count = min(CHUNK, rows)
        tokens = tuple(TOKENS[at % len(TOKENS)] for at in range(count))
        self.runner.prefill([Chunk(0, tokens, 0, 0)], [None])
        given = bytes(self.runner.read_rows(0, 0, count))
        for start in range(count, rows - count + 1, count):
            self.runner.write_rows(0, start, given)

    def step_ms(self, rows: int, steps: int) -> float:
        """Return the time of the fastest decode step behind `rows - 1` rows."""
        row = DecodeRow(0, TOKENS[0], rows - 1, rows - 1, GREEDY)
        return min(_ms(lambda: self.runner.decode([row])) for _ in range(steps))

    def chunk_ms(self, rows: int) -> float:
        """Return the time of the last chunk of `rows`."""
        count = min(CHUNK, rows)
        tokens = tuple(TOKENS[at % len(TOKENS)] for at in range(count))
        return _ms(lambda: self.runner.prefill([Chunk(0, tokens, rows - count, rows - count)], [None]))


def _ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


def speed(measured: Sequence[Measured], rows: int, rounds: int, steps: int) -> list[str]:
    """Return a line of the table for each type of cache."""
    for each in measured:
        each.fill(rows)
    best = {each.kind: (math.inf, math.inf) for each in measured}
    for number in range(rounds):
        for each in measured if number % 2 else reversed(measured):
            step, chunk = best[each.kind]
            best[each.kind] = min(step, each.step_ms(rows, steps)), min(chunk, each.chunk_ms(rows))
    lines = []
    for each in measured:
        size, (step, chunk), plain = each.runner.capabilities.row_bytes, best[each.kind], best["auto"]
        lines.append(
            f"{rows:7} {each.kind:6} {size:9} {rows * size / 1e6:9.1f} {step:9.2f} {plain[0] / step:7.2f}x "
            f"{chunk:10.1f} {plain[1] / chunk:7.2f}x"
        )
    return lines


def texts(limit: int) -> list[tuple[int, ...]]:
    """Return the questions of the evaluation as tokens, in parts of equal length."""
    tokenizer = Tokenizer.from_file(str(builtin_path() / "tokenizer.json"))
    tokens = tuple(chain.from_iterable(tokenizer.encode(prompt_text(question)).ids for question in questions()))
    parts = [tokens[start : start + TEXT_TOKENS] for start in range(0, len(tokens) - TEXT_TOKENS, TEXT_TOKENS)]
    return parts[:: max(1, len(parts) // limit)][:limit]


def log_probabilities(runner: Any, parts: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
    """Return the logits of each part, minus their logarithmic sum of exponentials."""
    out = []
    for part in parts:
        runner.reset(0)
        logits: NDArray[np.float32] = runner.logits(Chunk(0, part, 0, 0))
        top = logits.max(-1, keepdims=True)
        out.append(logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True)))
    return out


def perplexity(logs: Sequence[NDArray[np.float32]], parts: Sequence[tuple[int, ...]]) -> float:
    found = [log[np.arange(len(part) - 1), part[1:]] for log, part in zip(logs, parts, strict=True)]
    return float(np.exp(-np.concatenate(found).mean()))


def error(kind: str, logs: Sequence[NDArray[np.float32]], plain: Sequence[NDArray[np.float32]]) -> str:
    """Return the line of a type of cache."""
    ours, theirs = np.concatenate(logs), np.concatenate(plain)
    differences = np.abs(ours - theirs)
    agreed = float((ours.argmax(-1) == theirs.argmax(-1)).mean())
    divergence = float((np.exp(theirs) * (theirs - ours)).sum(-1).mean())
    return f"{kind:6} {differences.max():9.3f} {differences.mean():9.4f} {agreed:9.2%} {divergence:11.6f}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    add_quantize(parser)
    parser.add_argument("--backend", choices=["iree", "mlx"], default="iree", help="the runner")
    parser.add_argument(
        "--kv-dtypes", nargs="+", choices=["int8", "int4"], default=["int8", "int4"], help="beside the model's type"
    )
    parser.add_argument("--contexts", nargs="+", type=at_least(1), default=[4096, 8192, 16384, 32768], help="rows")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="runs of each, in turn; the fastest is printed")
    parser.add_argument("--threads", type=at_least(0), default=0, help="of IREE; 0 is one for each core")
    parser.add_argument("--steps", type=at_least(1), default=20, help="decode steps of a run")
    parser.add_argument("--texts", type=at_least(0), default=20, help=f"parts of {TEXT_TOKENS} tokens; 0 for no error")
    add_cache_dir(parser)
    smoke = {
        "model": "tiny",
        "kv_dtypes": ["int8"],
        "contexts": [512, SMOKE_CONTEXT],
        "rounds": 1,
        "steps": 2,
        "texts": 1,
    }
    return parsed(parser, words, smoke=smoke)


def loaded(args: argparse.Namespace, path: Path, context: int, dtype: str = "bfloat16") -> list[Measured]:
    """Load a model once for each type of cache."""
    setup = Setup(path, args.cache_dir, 1, context, dtype=dtype, quantize=args.quantize)
    device = "cpu" if args.backend == "mlx" else ""
    out = []
    for kind in ("auto", *args.kv_dtypes):
        spec = replace(setup.spec(), backend=args.backend, device=device, kv_dtype=kind, threads=args.threads)
        out.append(Measured(kind, load_settled(spec)))
    return out


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    measured = loaded(args, make_model(args.cache_dir, args.model), max(args.contexts))
    print(f"{args.model} {args.quantize or 'bf16'} on {measured[0].runner.capabilities.device}, one row")
    print(f"{'rows':>7} {'KV':6} {'row bytes':>9} {'MB':>9} {'step ms':>9} {'speed':>8} {'chunk ms':>10} {'speed':>8}")
    for rows in args.contexts:
        print("\n".join(speed(measured, rows, args.rounds, args.steps)), flush=True)
    for each in measured:
        each.runner.close()
    if not args.texts:
        return
    parts = texts(args.texts)
    measured = loaded(args, builtin_path(), TEXT_TOKENS)
    logs = {each.kind: log_probabilities(each.runner, parts) for each in measured}
    print(f"\nthe built-in model, {len(parts)} x {TEXT_TOKENS} tokens")
    print(f"{'KV':6} {'max error':>9} {'mean':>9} {'same top':>9} {'divergence':>11} perplexity")
    for each in measured:
        print(f"{error(each.kind, logs[each.kind], logs['auto'])} {perplexity(logs[each.kind], parts):10.4f}")
        each.runner.close()


if __name__ == "__main__":
    main()
