"""A long prompt arrives beside decoding streams: with a worker that computes it for the others, and without.

    python bench/scale_out/prefill_workers.py [--streams 4 8] [--context 3400] [--rounds 3]

Short prompts decode. When all of them have tokens, a long prompt of random tokens comes, whose answer has 200 tokens.
This runs on one worker, on two workers among which the gateway divides the requests, and on two of which one is a
prefill worker, each with one thread. Shown are the median, the 99th percentile and the longest of the gaps between
two tokens of the short ones, from the request of the long one to its first token, and from then to its end; of the long
one, the time to its first token, and the median and the longest gap, in which it moves. The first round warms up.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actors.process.logs import configure_logging
from bench.harness.closed_loop import percentile
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.options import add_cache_dir, add_model
from bench.harness.served import Served, served
from bench.harness.shapes import TOKENS, make_model
from bench.harness.sse_client import StreamedAnswer, request

NAME = "bench"
ANSWER = 200
"""Tokens of the answer to the long prompt."""
SHORT = 100
"""Tokens of the other prompts."""
ROOM = 4000
"""Tokens of their answers, which are cancelled when the long one ends."""
STEADY_S = 0.3
"""Time in which they decode before the long prompt comes."""
POLL_S = 0.02
FLEETS: dict[str, dict[str, int]] = {
    "one worker": {"workers": 1},
    "two workers": {"workers": 2},
    "prefill worker": {"workers": 2, "prefill_workers": 1},
}


@dataclass
class Gaps:
    """Seconds of all rounds."""

    in_prompt: list[float] = field(default_factory=list)
    """Gaps of the short ones while the prompt is computed."""
    in_answer: list[float] = field(default_factory=list)
    """The same after its first token."""
    first_token: list[float] = field(default_factory=list)
    long: list[float] = field(default_factory=list)
    """Median gaps of the long one."""
    longest: list[float] = field(default_factory=list)
    """Its longest gaps."""
    transfers: int = 0


async def one_round(found: Served, args: argparse.Namespace, streams: int, seed: int, gaps: Gaps) -> None:
    """Start the short ones, then the long one."""
    rng = random.Random(seed)
    url = urllib.parse.urlsplit(f"http://{found.server.host}:{found.server.port}")

    def body(context: int, most: int) -> dict[str, Any]:
        prompt = rng.choices(TOKENS, k=context)
        return {"model": NAME, "prompt": prompt, "max_tokens": most, "ignore_eos": True, "stream": True}

    answers = [StreamedAnswer(time.perf_counter()) for _ in range(streams)]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(request(url, "/v1/completions", "", body(SHORT, ROOM - SHORT), answer))
            for answer in answers
        ]
        while any(len(answer.stamps) < 2 for answer in answers):  # noqa: ASYNC110  their stamps have no event
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(STEADY_S)
        long = await request(url, "/v1/completions", "", body(args.context, ANSWER))
        for task in tasks:
            task.cancel()
    first = long.stamps[0]
    for answer in answers:
        gaps.in_prompt += between(answer.stamps, long.began, first)
        gaps.in_answer += between(answer.stamps, first, long.ended)
    own = between(long.stamps, first, long.ended)
    gaps.first_token.append(first - long.began)
    gaps.long.append(statistics.median(own))
    gaps.longest.append(max(own))


def between(stamps: Sequence[float], since: float, until: float) -> list[float]:
    """The times between two pieces of text, of which the second came in this time."""
    return [after - before for before, after in itertools.pairwise(stamps) if since < after <= until]


def measure(args: argparse.Namespace) -> Iterator[tuple[int, str, Gaps]]:
    """Measure each fleet with each number of streams."""
    for streams, name in itertools.product(args.streams, args.fleets):
        options: dict[str, Any] = {
            **FLEETS[name],
            "model": str(make_model(args.cache_dir, args.model)),
            "name": NAME,
            "backend": "iree",
            "threads": 1,
            "long_prompt_tokens": args.long_prompt_tokens,
            "max_batch_size": streams + 2,
            "context": max(args.context + ANSWER, ROOM) + 1,
            "cache_dir": str(args.cache_dir / "graphs"),
            "log_level": "warning",
        }
        gaps = Gaps()
        with served(options) as found:
            asyncio.run(one_round(found, args, streams, 0, Gaps()))
            before = found.metrics().get("baton_row_transfers_total", 0.0)
            for seed in range(1, args.rounds + 1):
                asyncio.run(one_round(found, args, streams, seed, gaps))
            gaps.transfers = round(found.metrics().get("baton_row_transfers_total", 0.0) - before)
        yield streams, name, gaps


def shown(gaps: Sequence[float]) -> str:
    found = (percentile([1e3 * gap for gap in gaps], share) for share in (0.5, 0.99, 1.0))
    return " / ".join("-" if each is None else f"{each:.0f}" for each in found)


SMOKE = {
    "model": "tiny",
    "context": 600,
    "streams": [1],
    "rounds": 1,
    "long_prompt_tokens": 300,
    "fleets": ["prefill worker"],
}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    parser.add_argument("--streams", nargs="+", type=at_least(1), default=[4, 8], help="short ones")
    parser.add_argument("--context", type=at_least(1), default=3400, help="tokens of the long prompt")
    parser.add_argument("--fleets", nargs="+", choices=FLEETS, default=[*FLEETS], help="that are compared")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="that are measured")
    parser.add_argument("--long-prompt-tokens", type=at_least(0), default=0, help="see baton serve --help")
    add_cache_dir(parser)
    return parsed(parser, words, smoke=SMOKE)


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    heads = f"{'in the prompt':>20}{'in the answer':>20}{'first token s':>15}{'long ms':>14}{'transfers':>11}"
    print(f"{'':16}{'streams':>8}{heads}")
    for streams, name, gaps in measure(args):
        line = f"{name:16}{streams:8}{shown(gaps.in_prompt):>20}{shown(gaps.in_answer):>20}"
        long = f"{1e3 * statistics.median(gaps.long):.0f} / {1e3 * statistics.median(gaps.longest):.0f}"
        print(f"{line}{statistics.median(gaps.first_token):15.2f}{long:>14}{gaps.transfers:11}", flush=True)


if __name__ == "__main__":
    main()
