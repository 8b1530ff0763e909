"""One sequence in a long context: the cost of prompts, decode steps and chunks at each depth, and their memory.

    python bench/depth.py [--model 110m-yarn] [--context 32768] [--quantize int8] [--window-cache ring]
        [--chunks 32 128 512]

A prompt grows to 256, 512, ... positions and up to the context, and 16 tokens are decoded at each depth; what was
computed before is taken from the prefix cache. Shown are prompt tokens a second since the depth before, a decode step,
the bytes that it reads (weights, and KV of every position) and how fast it does, and resident memory. At the end are
the bytes of the KV cache of one sequence of the whole context. The limit is what
memory gives when it is only read, measured before and after. Then the cost of a prompt token in chunks of each size.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


import psutil

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Engine, Setup
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_model, add_quantize
from bench.harness.shapes import make_model
from bench.measurement.limits import BLOCK, SMOKE_BLOCK, read_bandwidth, step_bytes
from bench.measurement.rounds import RefusedError
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Chunk, Runner
from workers.host.topology import usable_cores

SLOTS = SMOKE_SLOTS
"""One of them is used."""
FIRST = 256
STEPS = 16
MARGIN = 16
"""Rows of a slot beyond the deepest prompt and its steps."""
CHUNK_ROUNDS = 3


def depths(context: int) -> list[int]:
    """Prompt lengths: 256, 512, ... and the longest that leaves room for the steps."""
    deepest = context - STEPS - MARGIN
    powers = [FIRST << i for i in range(context.bit_length()) if FIRST << i < deepest]
    return [*powers, deepest]


def dive(engine: Engine, config: ModelConfig, context: int) -> Iterator[str]:
    """Yield a line for each depth."""
    read = step_bytes(config, engine.runner)
    text = engine.prompt(context)
    before, process = 0, psutil.Process()
    for depth in depths(context):
        step = statistics.median(engine.steps([text[:depth]], STEPS))
        rate = (depth - before) / engine.fill_s
        weights, kv = read.matrices(1), read.cache(1, depth)
        cells = (rate, 1e3 * step, weights / 1e6, kv / 1e6, (weights + kv) / step / 1e9)
        yield f"{depth:8}" + "".join(f"{cell:12.1f}" for cell in cells) + f"{process.memory_info().rss / 1e6:12.0f}"
        before = depth


def chunk_costs(runner: Runner, text: Sequence[int], depth: int, sizes: Sequence[int]) -> Iterator[str]:
    """Yield milliseconds a token after `depth` rows, a line for each chunk size. Each round computes the same rows."""
    largest = runner.capabilities.prefill_chunks[-1]
    for start in range(0, depth, largest):
        part = tuple(text[start : min(depth, start + largest)])
        runner.prefill([Chunk(0, part, start, start)], [None])
    for size in sizes:
        chunk = Chunk(0, tuple(text[depth : depth + size]), depth, depth)
        runner.prefill([chunk], [None])
        seconds = []
        for _ in range(CHUNK_ROUNDS):
            began = time.perf_counter()
            runner.prefill([chunk], [None])
            seconds.append(time.perf_counter() - began)
        yield f"{depth:8}{size:8}{1e3 * statistics.median(seconds) / size:14.3f}"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m-yarn")
    parser.add_argument("--context", type=at_least(1), default=32768, help="tokens of the one sequence")
    add_quantize(parser)
    parser.add_argument(
        "--window-cache", choices=["full", "ring"], default="full", help="what layers with a window keep"
    )
    parser.add_argument(
        "--chunks", nargs="*", type=at_least(1), default=[32, 128, 512], help="tokens of a chunk of prompt"
    )
    parser.add_argument(
        "--chunks-at", nargs="+", type=at_least(0), default=[0, 4096], help="positions at which chunks are timed"
    )
    add_cache_dir(parser)
    smoke = {"model": "tiny", "context": SMOKE_CONTEXT, "chunks": [32], "chunks_at": [0, 64]}
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    block = SMOKE_BLOCK if args.smoke else BLOCK
    limits = [read_bandwidth(usable_cores(), size=block)]
    path = make_model(args.cache_dir, args.model)
    try:
        setup = Setup(path, args.cache_dir / "graphs", SLOTS, args.context, quantize=args.quantize)
        engine = Engine.load(replace(setup, window_cache=args.window_cache))
    except RefusedError as error:
        sys.exit(f"refused: {error}")
    print(f"{args.model} {args.quantize or 'bf16'}, one sequence, context {args.context}")
    print(f"{'depth':>8}{'prompt/s':>12}{'step ms':>12}{'weights MB':>12}{'KV MB':>12}{'GB/s':>12}{'resident MB':>12}")
    for line in dive(engine, ModelConfig.from_dir(path), args.context):
        print(line, flush=True)
    held = engine.runner.capabilities
    kv = args.context * held.row_bytes + held.window_bytes
    print(f"{kv / 1e6:.1f} MB of KV cache for {args.context} tokens, {held.row_bytes / 1e3:.1f} kB for each")
    limits.append(read_bandwidth(usable_cores(), size=block))
    print(f"memory gives {' and '.join(f'{limit / 1e9:.1f}' for limit in limits)} GB/s")
    engine.runner.reset(0)
    if args.chunks:
        print(f"\n{'depth':>8}{'chunk':>8}{'ms a token':>14}")
        text = engine.prompt(args.context)
        for depth in args.chunks_at:
            if depth + max(args.chunks) > args.context:
                print(f"{depth:8}  beyond the context")
                continue
            for line in chunk_costs(engine.runner, text, depth, args.chunks):
                print(line, flush=True)
    engine.close()


if __name__ == "__main__":
    main()
