"""A worker is drained under streams, which go on at another one: with their cache rows, and recomputed.

    python bench/scale_out/kv_transfer.py [--contexts 100 1000 3400] [--streams 4]

Two workers have as many streams each, with prompts of random tokens of one length. When all of them have tokens, the
first worker is drained. Shown are, for the streams that move, the median and the longest gap between two tokens after
that, the same for those that stay, how long the drain took, and the rows that went over. Rows are recomputed in a
second server without a prefix cache, and without a grace: its streams move at once.
"""

import argparse
import asyncio
import functools
import itertools
import random
import statistics
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.options import add_cache_dir, add_model
from bench.harness.served import Served, served
from bench.harness.shapes import TOKENS, make_model
from bench.harness.sse_client import StreamedAnswer, request
from cli.client.administration import Administration

NAME = "bench"
GRACE_S = 60.0
POLL_S = 0.02
ROOM = 650
"""Tokens of an answer, and rows of a slot beyond the longest prompt."""


@dataclass(frozen=True)
class Drained:
    """Seconds and megabytes of one drain."""

    moved: list[float]
    """The longest gap of each stream that moved."""
    stayed: list[float]
    drain_s: float
    megabytes: float
    transfers: int


async def drain(found: Served, context: int, streams: int, grace_s: float, seed: int) -> Drained:
    """Start streams on both workers, and drain the first one when all have tokens."""
    rng, before = random.Random(seed), found.metrics()
    url = urllib.parse.urlsplit(f"http://{found.server.host}:{found.server.port}")
    answers: list[StreamedAnswer] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(2 * streams):
            prompt = rng.choices(TOKENS, k=context)
            body = {"model": NAME, "prompt": prompt, "max_tokens": ROOM - 20, "ignore_eos": True, "stream": True}
            answers.append(StreamedAnswer(time.perf_counter()))
            group.create_task(request(url, "/v1/completions", "", body, answers[-1]))
        while any(len(answer.stamps) < 2 for answer in answers):  # noqa: ASYNC110  their stamps have no event
            await asyncio.sleep(POLL_S)
        began = time.perf_counter()
        admin = functools.partial(Administration(found.client).operate, say=lambda line: None)
        await asyncio.to_thread(admin, "/admin/workers/w0/drain", grace_s)
        took = time.perf_counter() - began
        await asyncio.to_thread(admin, "/admin/workers/w0/restart", grace_s)
    now = found.metrics()
    gaps = sorted(longest_gap(answer.stamps, began) for answer in answers)
    size = now.get("baton_row_transfer_bytes_total", 0.0) - before.get("baton_row_transfer_bytes_total", 0.0)
    count = now.get("baton_row_transfers_total", 0.0) - before.get("baton_row_transfers_total", 0.0)
    return Drained(gaps[streams:], gaps[:streams], took, size / 1e6, round(count))


def longest_gap(stamps: Sequence[float], since: float) -> float:
    """The longest time between two pieces of text, of which the second came after `since`."""
    pairs = itertools.pairwise(stamps)
    return max((after - before for before, after in pairs if after > since), default=0.0)


def shown(gaps: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(gaps):.0f} / {1e3 * max(gaps):.0f}"


def measure(args: argparse.Namespace, *, rows: bool) -> Iterator[tuple[int, Drained]]:
    """Drain once for each context."""
    options: dict[str, Any] = {
        "model": str(make_model(args.cache_dir, args.model)),
        "name": NAME,
        "backend": "iree",
        "workers": 2,
        "threads": 1,
        "max_batch_size": 2 * args.streams,
        "context": max(args.contexts) + ROOM,
        "prefix_cache": rows,
        "cache_dir": str(args.cache_dir / "graphs"),
        "log_level": "warning",
        "speculate": "off",  # the answers of random weights repeat themselves
    }
    with served(options) as found:
        found.client.timeout = httpx.Timeout(GRACE_S)
        for context in args.contexts:
            yield context, asyncio.run(drain(found, context, args.streams, GRACE_S if rows else 0.0, context))


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    parser.add_argument("--contexts", nargs="+", type=at_least(1), default=[100, 1000, 3400], help="tokens of a prompt")
    parser.add_argument("--streams", type=at_least(1), default=4, help="of each worker; it has twice as many slots")
    add_cache_dir(parser)
    return parsed(parser, words, smoke={"model": "tiny", "contexts": [100], "streams": 1})


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    print(f"{'':12}{'context':>8}{'moved ms':>16}{'stayed ms':>16}{'drain s':>9}{'rows MB':>9}{'transfers':>10}")
    for name, rows in (("with rows", True), ("recomputed", False)):
        for context, each in measure(args, rows=rows):
            moved, stayed = (
                f"{1e3 * statistics.median(gaps):.0f} / {1e3 * max(gaps):.0f}" for gaps in (each.moved, each.stayed)
            )
            line = f"{name:12}{context:8}{moved:>16}{stayed:>16}{each.drain_s:9.2f}{each.megabytes:9.1f}"
            print(f"{line}{each.transfers:10}", flush=True)


if __name__ == "__main__":
    main()
