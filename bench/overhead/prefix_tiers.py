"""Gain of the prefix tier, and its cost where it cannot gain.

    python bench/overhead/prefix_tiers.py [--parts first,gap,cost] [--backend mlx] [--prompt 2048]
        [--gap-prompts 100,3400] [--gap-servers with] [--gap-rounds 3]

All servers have one active worker of a shape with random weights. Each prompt is of random tokens.

  first  the time to the first token of a prompt that begins with a system prompt of --prompt tokens: cold, with its KV
         in a slot, after --others other requests, after the worker was killed and replaced, after the server was
         restarted, and on another server beside the first
  gap    the longest time between two chunks of --streams streams whose worker is killed, with a standby, for prompts of
         --gap-prompts tokens, with the tier and without it (or with one of them, by --gap-servers)
  cost   the tokens a second, prompts included, of --streams streams of prompts that nobody sends again, with the tier
         and without it, in pairs of which the first is each in turn: the median of their ratios, with its confidence
         interval of 95 %

There is no peer; the limit is 0.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, levels, parsed
from bench.harness.engine import Setup
from bench.harness.http import server
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_backend, add_cache_dir, add_model
from bench.harness.settled import compile_graphs
from bench.harness.shapes import TOKENS, make_model
from bench.harness.sse_client import StreamedAnswer, request

PARTS = ("first", "gap", "cost")
SERVERS = WITHOUT, WITH = "without", "with"
"""Servers of `gap` by whether they have a tier."""
TIER_BYTES = 4 << 30
QUESTION = 16
"""Tokens after the system prompt."""
BEGUN = 16
"""Chunks that each stream has when its worker is killed: a chunk has one token or more."""
READY_S = 300.0
SAVED_S = 0.3
"""Pause after a burst, in which a server saves what it has put off: otherwise it would slow the other one."""


class Asker:
    """Sends prompts to servers and times the answers."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def tokens(self, count: int) -> list[int]:
        """Return random tokens."""
        return self._random.choices(TOKENS, k=count)

    async def ask(
        self, url: str, prompt: list[int], tokens: int, answer: StreamedAnswer | None = None
    ) -> StreamedAnswer:
        """Return the streamed answer to a prompt."""
        body: dict[str, Any] = {"model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0.0}
        body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        return await request(urllib.parse.urlsplit(url), "/v1/completions", "", body, answer)

    def first_ms(self, url: str, prompt: list[int]) -> float:
        """Return the milliseconds to the first token."""
        answer = asyncio.run(self.ask(url, prompt, 2))
        return 1e3 * (answer.stamps[0] - answer.began)

    async def others(self, url: str, count: int) -> None:
        """Send so many other requests, a few at a time."""
        for _ in range(count // 4):
            await asyncio.gather(*(self.ask(url, self.tokens(48), 4) for _ in range(4)))


def compile_apart(setup: Setup) -> None:
    """Compile what is not in the cache, in a process of its own: a server would do so while it is measured."""
    configure_logging("bench", "warning")
    compile_graphs(setup.spec())


def workers(url: str) -> list[dict[str, Any]]:
    """Return the workers of a server."""
    with urllib.request.urlopen(f"{url}/admin/workers", timeout=10) as found:
        listed: list[dict[str, Any]] = json.load(found)["workers"]
    return listed


def kill_active(url: str) -> int:
    """Kill the active worker."""
    pid = int(next(worker for worker in workers(url) if worker["role"] == "active")["pid"])
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_replaced(url: str, pid: int) -> None:
    """Wait until all workers are ready and none is the killed one."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if all(worker["state"] == "ready" and worker["pid"] != pid for worker in workers(url)):
            return
        time.sleep(0.1)
    raise TimeoutError(f"the workers are not ready after {READY_S:g} s")


def wait_ready(url: str) -> None:
    """Wait until all workers are ready."""
    wait_replaced(url, -1)


def tier(directory: Path, size: int = TIER_BYTES) -> tuple[str, ...]:
    """Return the options of a server with a tier in this directory."""
    return ("--prefix-cache-bytes", str(size), "--prefix-cache-dir", str(directory))


def measure_first(setup: Setup, args: argparse.Namespace, directory: Path) -> None:
    asker = Asker(1)
    found: dict[str, list[float]] = {}

    def note(name: str, url: str, system: list[int]) -> None:
        found.setdefault(name, []).append(asker.first_ms(url, system + asker.tokens(QUESTION)))

    systems = []
    with server(setup, *tier(directory)) as url:
        asker.first_ms(url, asker.tokens(args.prompt))  # loads what is loaded once
        for _ in range(args.rounds):
            systems.append(asker.tokens(args.prompt))
            note("cold", url, systems[-1])
            note("in a slot", url, systems[-1])
            asyncio.run(asker.others(url, args.others))
            note(f"after {args.others} other requests", url, systems[-1])
        for system in systems:
            pid = kill_active(url)
            wait_replaced(url, pid)
            asker.first_ms(url, asker.tokens(QUESTION))
            note("after the loss of the worker", url, system)
        with server(setup, *tier(directory)) as sibling:
            asker.first_ms(sibling, asker.tokens(args.prompt))
            for system in systems:
                note("on another server", sibling, system)
    with server(setup, *tier(directory)) as again:
        asker.first_ms(again, asker.tokens(args.prompt))
        for system in systems:
            note("after a restart of the server", again, system)
    cold = statistics.median(found["cold"])
    print(f"first token after a system prompt of {args.prompt} tokens, median of {args.rounds}, ms")
    for name, times in found.items():
        middle = statistics.median(times)
        print(f"  {name:<34}{middle:10.1f}{cold / middle:8.1f} x")


async def gaps(url: str, asker: Asker, streams: int, length: int, tokens: int) -> list[float]:
    """Kill the worker of streams that decode; return the longest time between two chunks of each, in ms."""
    answers = [StreamedAnswer(time.perf_counter()) for _ in range(streams)]
    prompts = [asker.tokens(length) for _ in range(streams)]
    asked = asyncio.gather(
        *(asker.ask(url, prompt, tokens, each) for prompt, each in zip(prompts, answers, strict=True))
    )
    while not (asked.done() or all(len(each.stamps) >= BEGUN for each in answers)):  # noqa: ASYNC110 - of the readers
        await asyncio.sleep(0.01)
    if any(each.done for each in answers):
        sys.exit("an answer has ended before the kill: take more --gap-tokens")
    killed_at = time.perf_counter()
    await asyncio.to_thread(kill_active, url)
    await asked
    longest = []
    for each in answers:
        after = [killed_at, *(stamp for stamp in each.stamps if stamp > killed_at), each.ended]
        longest.append(1e3 * max(later - earlier for earlier, later in itertools.pairwise(after)))
    return longest


def measure_gap(setup: Setup, args: argparse.Namespace, directory: Path) -> None:
    print(f"longest gap of {args.streams} streams whose worker is killed, with a standby, ms: median and most")
    for length in args.gap_prompts:
        found: dict[str, tuple[float, float]] = {}
        for name in args.gap_servers:
            asker, longest = Asker(2), list[float]()
            with server(setup, "--standby", "1", *(tier(directory) if name == WITH else ())) as url:
                for _ in range(args.gap_rounds):
                    wait_ready(url)
                    longest += asyncio.run(gaps(url, asker, args.streams, length, args.gap_tokens))
            found[name] = statistics.median(longest), max(longest)
        shown = "".join(f"   {name} {middle:8.0f} {most:8.0f}" for name, (middle, most) in found.items())
        if len(found) == len(SERVERS):
            off, on = (found[name] for name in SERVERS)
            shown += f"   {off[0] / on[0]:6.1f} x {off[1] / on[1]:6.1f} x"
        print(f"  {length:6} tokens:{shown}", flush=True)


async def rate(url: str, asker: Asker, streams: int, length: int, tokens: int) -> float:
    """Tokens a second of one burst of prompts that are new, prompts included."""
    began = time.perf_counter()
    await asyncio.gather(*(asker.ask(url, asker.tokens(length), tokens) for _ in range(streams)))
    return streams * (length + tokens) / (time.perf_counter() - began)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the confidence interval of the median of at least 95 %, of two order statistics, which asks nothing of the
    distribution; the least and the most of fewer than six values."""
    ordered, count = sorted(values), len(values)
    outside, at = 0.0, 0
    while at < count // 2 and (outside := outside + math.comb(count, at) / 2**count) <= 0.025:
        at += 1
    return ordered[max(at - 1, 0)], ordered[count - max(at, 1)]


def measure_cost(setup: Setup, args: argparse.Namespace, directory: Path) -> None:
    asker = Asker(3)
    with (
        server(setup, "--prefix-cache-bytes", "0") as plain,
        server(setup, *tier(directory, args.tier_bytes)) as tiered,
    ):
        rates: dict[str, list[float]] = {plain: [], tiered: []}
        for turn in range(args.cost_rounds + 1):
            for url in (plain, tiered) if turn % 2 else (tiered, plain):
                rates[url].append(asyncio.run(rate(url, asker, args.streams, args.cost_prompt, args.tokens)))
                time.sleep(SAVED_S)
        without, with_tier = (found[1:] for found in rates.values())  # the first burst loads graphs
    ratios = [on / off for off, on in zip(without, with_tier, strict=True)]
    low, high = median_interval(ratios)
    print(
        f"tokens a second of {args.streams} streams of {args.cost_prompt} + {args.tokens} new tokens: without "
        f"{statistics.median(without):.0f}, with {statistics.median(with_tier):.0f}; "
        f"ratio {statistics.median(ratios):.3f} (median of {len(ratios)} pairs, {low:.3f} to {high:.3f} with 95 %, "
        f"single ones {min(ratios):.3f} to {max(ratios):.3f})"
    )


def parts(text: str) -> list[str]:
    """The `type` of `--parts`."""
    names = text.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(PARTS)}")
    return names


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--parts", type=parts, default=",".join(PARTS), help="what to measure, separated by commas")
    parser.add_argument("--prompt", type=at_least(1), default=2048, help="tokens of the system prompt")
    parser.add_argument("--others", type=at_least(4), default=100, help="other requests before it is sent again")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="system prompts")
    parser.add_argument("--gap-prompts", type=levels, default="100,3400", help="tokens of prompts, by commas")
    parser.add_argument("--streams", type=at_least(1), default=8, help="streams at once")
    parser.add_argument("--gap-tokens", type=at_least(8), default=1000, help="tokens of an answer of `gap`")
    parser.add_argument("--gap-servers", nargs="+", choices=SERVERS, default=list(SERVERS), help="the tier of `gap`")
    parser.add_argument("--gap-rounds", type=at_least(1), default=1, help="kills of each server of `gap`")
    parser.add_argument("--tokens", type=at_least(8), default=100, help="tokens of an answer of `cost`")
    parser.add_argument("--cost-prompt", type=at_least(1), default=512, help="tokens of a prompt of `cost`")
    parser.add_argument("--cost-rounds", type=at_least(1), default=8, help="bursts of each server")
    parser.add_argument("--context", type=at_least(64), default=4096, help="of the servers")
    parser.add_argument("--tier-bytes", type=at_least(1), default=TIER_BYTES, help="of the tier of `cost`")
    add_model(parser, "110m")
    add_backend(parser)
    add_cache_dir(parser)
    smoke: dict[str, Any] = {
        "model": "tiny",
        "parts": "cost",
        "prompt": 200,
        "others": 4,
        "rounds": 1,
        "gap_prompts": "100",
        "cost_prompt": 64,
    }
    smoke |= {"streams": SMOKE_SLOTS, "gap_tokens": 800, "tokens": 20, "cost_rounds": 1, "context": SMOKE_CONTEXT}
    return parsed(parser, words, smoke=smoke)


@contextlib.contextmanager
def tier_directory() -> Iterator[Path]:
    """A directory in memory, where there is such a file system."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def run(args: argparse.Namespace) -> None:
    """Print the table of each part."""
    made, graphs = make_model(args.cache_dir, args.model), args.cache_dir / "graphs"
    setup = Setup(made, graphs, args.streams, args.context, backend=args.backend)
    compiling = multiprocessing.get_context("spawn").Process(target=compile_apart, args=(setup,))
    compiling.start()  # not in this process, whose threads would stay on the CPUs of the runner
    compiling.join()
    if compiling.exitcode:
        sys.exit("the graphs cannot be compiled")
    measures = {"first": measure_first, "gap": measure_gap, "cost": measure_cost}
    for name in args.parts:
        with tier_directory() as directory:
            measures[name](setup, args, directory)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and directories end as well
    run(arguments())


if __name__ == "__main__":
    main()
