"""Tokens a second over HTTP beside the engine alone: the same model, prompts and lengths, in turn, in one run.

    python bench/serving.py [--model 110m] [--streams 8] [--rounds 3] [--max-tokens 64]

The server is `baton serve` with one worker process on the IREE engine, under closed-loop load over SSE with usage. The
engine alone, the limit, is `BatchEngine` in this process, which keeps as many sequences in flight and makes no text.
While one is measured the other is idle and blocks. Figures are medians over the rounds.
"""

import argparse
import asyncio
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.process.logs import configure_logging
from bench.harness.closed_loop import Load, run_level
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Setup
from bench.harness.http import server
from bench.harness.options import SMOKE_SLOTS, add_cache_dir, add_model
from bench.harness.settled import load_settled
from bench.harness.shapes import make_model
from protocol.request import Sampling
from workers.engine.engine import BatchEngine
from workers.engine.request import EngineRequest
from workers.engine.runner import Runner

CONTEXT = 1024
PROMPT = tuple(3 + i % 300 for i in range(64))


def alone(runner: Runner, streams: int, requests: int, max_tokens: int) -> float:
    """Tokens a second of wall time: `requests` sequences, at most `streams` at once."""
    engine = BatchEngine(runner, max_queue=streams, step_tokens=512)
    left = iter(range(requests))
    began = time.perf_counter()
    tokens = 0

    def submit() -> None:
        if (stream := next(left, None)) is not None:
            engine.submit(EngineRequest(stream, PROMPT, Sampling(), max_tokens, frozenset()))

    for _ in range(streams):
        submit()
    while not engine.idle:
        result = engine.step()
        if result.failures:
            raise RuntimeError(result.failures[0].text)
        tokens += len(result.tokens)
        for _ in result.ends:
            submit()
    return tokens / (time.perf_counter() - began)


def served(url: str, streams: int, requests: int, max_tokens: int) -> float:
    """Tokens a second of wall time over HTTP. Raises RuntimeError when a request failed."""
    load = Load(url, "bench", max_tokens, extra={"prompt": list(PROMPT), "ignore_eos": True})
    figures = asyncio.run(run_level(load, streams, requests, random.Random(1)))
    if figures["bad"]:
        raise RuntimeError(figures["why"])
    return float(figures["out_tok_s"])


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    parser.add_argument(
        "--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"], help="of the weights"
    )
    parser.add_argument("--streams", type=at_least(1), default=8, help="at once")
    parser.add_argument("--requests", type=at_least(1), default=24, help="of one run")
    parser.add_argument("--max-tokens", type=at_least(1), default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="runs of each, in turn; medians are printed")
    add_cache_dir(parser)
    smoke = {"model": "tiny", "streams": SMOKE_SLOTS, "requests": 4, "max_tokens": 8, "rounds": 1}
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends as well
    path = make_model(args.cache_dir, args.model)
    setup = Setup(path, args.cache_dir / "graphs", args.streams, CONTEXT, args.dtype)
    with server(setup) as url:
        runner = load_settled(setup.spec())
        work = (args.streams, args.requests, args.max_tokens)
        engine, http = [], []
        for turn in range(args.rounds):
            engine.append(alone(runner, *work))
            http.append(served(url, *work))
            print(f"round {turn + 1}: engine {engine[-1]:.1f}, HTTP {http[-1]:.1f} tok/s", flush=True)
        runner.close()
    ratio = statistics.median(b / a for a, b in zip(engine, http, strict=True))
    print(
        f"{args.model} {args.dtype}, {args.streams} streams: engine alone {statistics.median(engine):.1f} tok/s, "
        f"through HTTP {statistics.median(http):.1f} tok/s, ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
