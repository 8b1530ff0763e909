"""Shares of two API keys of an overloaded server, and short requests behind long prompts, over HTTP.

    python bench/gateway_load/fairness.py [--model 110m] [--seconds 45] [--greedy 400] [--polite 2] [--equal 160]
        [--queue 256]

The server is `baton serve` with one worker process on the IREE engine. First one key has --greedy connections and
another one --polite, then both have --equal: each connection sends one request after the other, and tries again after a
second when it is refused, whatever `Retry-After` says. Shown are, for each key, the answers and their tokens, the
refusals and the median `Retry-After`, and the median and the longest time of an answer. `right` is the percentage of
refusals whose `Retry-After` was within a factor of two of what answers took whose requests the same key sent at that
time. Below are the resident memory of the gateway in the second quarter of the time and in the last, and by how much
the tokens of the two keys differ. A request without an answer, or with an error, ends the benchmark. Then, with each of
--policies, two prompts of --long tokens are sent and three requests of 16 tokens behind them, for two tokens each:
shown are the times to the end of both kinds. What each key gets is compared with what the other one gets.
"""

import argparse
import asyncio
import json
import random
import signal
import statistics
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import psutil

from actors.process.logs import configure_logging
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Setup
from bench.harness.http import server
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_model
from bench.harness.shapes import TOKENS, make_model

SLOTS, CONTEXT = 8, 4096
PROMPT, ANSWER = 64, 64
RETRY_S = 1.0
NEAR_S = 2.0
"""Requests that were sent within this time were sent at the same time."""
KEYS = {"one": "key-of-the-first-client", "two": "key-of-the-second-client"}


@dataclass
class Connections:
    """The connections of one key, and what they got."""

    key: str
    count: int
    tokens: int = 0
    took: list[tuple[float, float]] = field(default_factory=list)
    """When a request was sent, and the seconds to its answer."""
    advised: list[tuple[float, int]] = field(default_factory=list)
    """When a request was refused, and its `Retry-After`."""
    other: int = 0
    """Requests without an answer, or whose status was neither 200 nor 429."""

    def right(self) -> float:
        """The percentage of refusals with a right `Retry-After`; 100 without any."""
        ratios = []
        for when, seconds in self.advised:
            took = [each for sent, each in self.took if abs(sent - when) < NEAR_S]
            if took:
                ratios.append(seconds / statistics.median(took))
        return 100.0 * sum(0.5 <= ratio <= 2.0 for ratio in ratios) / len(ratios) if ratios else 100.0


async def post(url: urllib.parse.SplitResult, key: str, body: dict[str, object]) -> tuple[int, int, bytes]:
    """Send a request on a connection of its own. Returns the status, `Retry-After` or 0, and the body."""
    host, port = url.hostname or "127.0.0.1", url.port or 80
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 22)
    try:
        head = ["POST /v1/completions HTTP/1.1", f"Host: {host}", "Content-Type: application/json", "Connection: close"]
        head += [f"Authorization: Bearer {key}", f"Content-Length: {len(payload)}", "", ""]
        writer.write("\r\n".join(head).encode() + payload)
        answer = await reader.read(-1)
    finally:
        writer.close()
    lines, _, content = answer.partition(b"\r\n\r\n")
    first, *headers = lines.decode("latin-1").split("\r\n")
    retry = next((line.partition(":")[2] for line in headers if line.lower().startswith("retry-after:")), "0")
    return int(first.split()[1]), int(retry), content


def body(prompt: int, tokens: int, chosen: random.Random) -> dict[str, object]:
    return {
        "model": "bench",
        "prompt": chosen.choices(TOKENS, k=prompt),
        "max_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
    }


async def connect(url: urllib.parse.SplitResult, mine: Connections, until: float, chosen: random.Random) -> None:
    while (began := time.perf_counter()) < until:
        try:
            status, retry, content = await post(url, KEYS[mine.key], body(PROMPT, ANSWER, chosen))
        except (OSError, IndexError):  # the connection broke, or ended without an answer
            mine.other += 1
            continue
        if status == 200:
            mine.took.append((began, time.perf_counter() - began))
            mine.tokens += json.loads(content)["usage"]["completion_tokens"] if time.perf_counter() < until else 0
        elif status == 429:
            mine.advised.append((began, retry))
            await asyncio.sleep(RETRY_S)
        else:
            mine.other += 1


async def overload(url: str, seconds: float, *keys: Connections) -> list[float]:
    """Load the server for so long. Returns megabytes of resident memory of the gateway, sampled over the time."""
    (gateway,) = psutil.Process().children()
    parts, until, chosen = urllib.parse.urlsplit(url), time.perf_counter() + seconds, random.Random(0)
    resident = []
    tasks = [asyncio.create_task(connect(parts, each, until, chosen)) for each in keys for _ in range(each.count)]
    while time.perf_counter() < until:
        resident.append(gateway.memory_info().rss / 1e6)
        await asyncio.sleep(seconds / 40)
    await asyncio.gather(*tasks)
    return resident


def report(keys: Sequence[Connections], resident: Sequence[float]) -> None:
    columns = {"at once": 9, "answers": 9, "tokens": 9, "median s": 10, "longest": 9, "refused": 9, "retry s": 9}
    columns |= {"right": 7}
    print(f"{'key':>5}" + "".join(f"{name:>{width}}" for name, width in columns.items()))
    for each in keys:
        took = [seconds for _, seconds in each.took] or [0.0]
        times = [statistics.median(took), max(took)]
        advised = statistics.median(seconds for _, seconds in each.advised) if each.advised else 0
        cells = f"{each.count:9}{len(each.took):9}{each.tokens:9}{times[0]:10.2f}{times[1]:9.2f}{len(each.advised):9}"
        print(f"{each.key:>5}{cells}{advised:9.0f}{each.right():6.0f}%", flush=True)
        if each.other:
            raise RuntimeError(f"{each.other} requests of key {each.key} failed or were not answered")
    quarter = len(resident) // 4
    early, late = statistics.median(resident[quarter : 2 * quarter]), statistics.median(resident[-quarter:])
    print(f"gateway {early:.0f} MB, and at the end {late:.0f} MB", flush=True)
    tokens = [each.tokens for each in keys]
    print(f"tokens of the keys differ by {100 * (max(tokens) - min(tokens)) / max(1, max(tokens)):.1f} %", flush=True)


async def mixed(url: str, long: int, chosen: random.Random) -> tuple[list[float], list[float]]:
    """Seconds of two long prompts and of three short requests behind them."""
    parts = urllib.parse.urlsplit(url)

    async def one(prompt: int) -> float:
        began = time.perf_counter()
        status, _, content = await post(parts, KEYS["one"], body(prompt, 2, chosen))
        if status != 200:
            raise RuntimeError(content.decode(errors="replace"))
        return time.perf_counter() - began

    slow = [asyncio.create_task(one(long)) for _ in range(2)]
    await asyncio.sleep(0.05)
    quick = await asyncio.gather(*(one(16) for _ in range(3)))
    return await asyncio.gather(*slow), quick


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "110m")
    parser.add_argument("--seconds", type=at_least(1), default=45, help="time of each overload")
    parser.add_argument("--greedy", type=at_least(0), default=400, help="connections of the first key; 0: no such load")
    parser.add_argument("--polite", type=at_least(1), default=2, help="connections of the second key beside it")
    parser.add_argument("--equal", type=at_least(0), default=160, help="connections of each key then; 0: no such load")
    parser.add_argument("--queue", type=at_least(0), default=256, help="requests that may wait in the gateway")
    parser.add_argument("--long", type=at_least(1), default=2500, help="tokens of a long prompt")
    parser.add_argument(
        "--policies", nargs="*", default=["fifo", "shortest-uncached-first"], help="that long prompts are sent to"
    )
    add_cache_dir(parser)
    smoke = {"model": "tiny", "seconds": 2, "greedy": 3, "polite": 1, "equal": 2, "long": 300}
    return parsed(parser, words, smoke=smoke)


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends as well
    slots, context = (SMOKE_SLOTS, SMOKE_CONTEXT) if args.smoke else (SLOTS, CONTEXT)
    setup = Setup(make_model(args.cache_dir, args.model), args.cache_dir / "graphs", slots, context)
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.touch(0o600)
        keys.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
        with server(setup, "--api-keys-file", str(keys), "--max-waiting-streams", str(args.queue)) as url:
            asyncio.run(mixed(url, args.long, random.Random(1)))  # loads what is loaded late
            for pair in ((args.greedy, args.polite), (args.equal, args.equal)):
                if not pair[0]:
                    continue
                clients = [Connections(name, count) for name, count in zip(KEYS, pair, strict=True)]
                report(clients, asyncio.run(overload(url, args.seconds, *clients)))
        for policy in args.policies:
            with server(setup, "--api-keys-file", str(keys), "--scheduler-policy", policy) as url:
                asyncio.run(mixed(url, args.long, random.Random(2)))
                long, short = asyncio.run(mixed(url, args.long, random.Random(3)))
                print(f"{policy}: long {max(long):.3f} s, short {max(short):.3f} s", flush=True)


if __name__ == "__main__":
    main()
