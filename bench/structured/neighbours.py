"""Measures what the streams of a server notice of grammars that are compiled beside them.

    python bench/structured/neighbours.py [--model 0.5b] [--streams 8] [--rounds 4] [--seconds 6]

--streams answers stream from one worker all the time. Beside them a client sends --rate requests a second at most, one
at a time, of one token each. Windows of --seconds take turns:

  none      nothing is sent
  large     each request has a schema of some 75 KB, each a new one
  cached    as often as in the window before, with a grammar that the worker has compiled
  runaway   each request has a schema that would be refused at the limit of time, from a client with a key of its own,
            whose new grammars are held back after the first three

So `large` differs from `cached`, and `runaway` from `none`, in what is compiled alone. Printed are the times between
the tokens of the streams, and the ratios of their median and of their 99th percentile to those of the other window of
the same round: the medians over the rounds.
"""

import argparse
import asyncio
import itertools
import signal
import statistics
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from actors.process.logs import configure_logging
from bench.harness.command_line import above_zero, at_least, command_line, parsed
from bench.harness.engine import Engine, Setup
from bench.harness.http import server
from bench.harness.options import SMOKE_CONTEXT, SMOKE_SLOTS, add_cache_dir, add_model, add_quantize
from bench.harness.shapes import make_model
from bench.harness.sse_client import BadAnswerError, StreamedAnswer, request
from bench.structured.schemas import PERSON, large_schemas, runaway_schemas

CONTROL = {"large": "cached", "runaway": "none"}
KINDS = ("none", "large", "cached", "runaway")
PROMPT = [3 + index % 250 for index in range(16)]
MOST = 900
"""Tokens of an answer, after which its client sends the request again."""
TOGETHER_S = 0.0005
"""Chunks that come closer to each other were read at once: this process had no core in time."""
PATH = "/v1/completions"
KEYS = {"runaway": "attacker"}
"""API keys of the requests of a window, if they are not those of the streams."""
KEY = "client"


@dataclass
class Stamped(StreamedAnswer):
    """An answer whose chunks are stamped, with or without text, in a list that all answers share."""

    shared: list[tuple[float, float]] = field(default_factory=list)
    """When a chunk came, and the seconds since the one before."""
    last: float = 0.0

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        if any(choice.get("token_ids") for choice in event.get("choices") or []):
            now = time.perf_counter()
            if self.last and now - self.last < TOGETHER_S:
                return
            if self.last:
                self.shared.append((now, now - self.last))
            self.last = now


@dataclass
class Window:
    """The times between tokens in one window, and the requests beside them."""

    gaps: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    """Seconds of each."""

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.gaps, share)) if self.gaps else float("nan")


class Clients:
    """The clients of one server."""

    def __init__(self, url: str, rate: float) -> None:
        self._url = urllib.parse.urlsplit(url)
        self._rate = rate
        self._cached_rate = rate
        self._stamps: list[tuple[float, float]] = []
        self._schemas: dict[str, Iterator[Any]] = {
            "cached": itertools.repeat(PERSON),
            "large": large_schemas(),
            "runaway": runaway_schemas(),
        }

    async def stream(self) -> None:
        """Stream one answer after the other."""
        while True:
            body = self._body(MOST) | {"stream": True, "return_token_ids": True}
            await request(self._url, PATH, KEY, body, Stamped(time.perf_counter(), shared=self._stamps))

    async def window(self, kind: str, seconds: float) -> Window:
        """Send requests with grammars of this kind for so many seconds."""
        window, began = Window(), time.perf_counter()
        first = len(self._stamps)
        rate = self._cached_rate if kind == "cached" else self._rate
        if kind == "none":
            await asyncio.sleep(seconds)
        while (now := time.perf_counter()) - began < seconds:
            body = self._body(1) | {"stream": True, "guided_json": next(self._schemas[kind])}
            try:
                await request(self._url, PATH, KEYS.get(kind, KEY), body)
            except BadAnswerError as error:
                if kind != "runaway" or "to compile" not in str(error):
                    raise
            took = time.perf_counter() - now
            window.beside.append(took)
            await asyncio.sleep(max(0.0, 1 / rate - took))
        if kind == "large":
            self._cached_rate = len(window.beside) / (time.perf_counter() - began)
        window.gaps = [gap for when, gap in self._stamps[first:] if when - gap >= began]
        return window

    @staticmethod
    def _body(tokens: int) -> dict[str, Any]:
        return {"model": "bench", "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}


async def measure(clients: Clients, streams: int, rounds: int, seconds: float) -> dict[str, list[Window]]:
    """Return the windows of each kind, one a round."""
    found: dict[str, list[Window]] = {kind: [] for kind in KINDS}
    async with asyncio.TaskGroup() as group:
        lanes = [group.create_task(clients.stream()) for _ in range(streams)]
        for kind in KINDS:
            await clients.window(kind, seconds / 2)  # starts the check process, and fills the caches
        for round_ in range(rounds):
            for kind in (*KINDS[round_ % 2 * 3 :], *KINDS[: round_ % 2 * 3]):  # the runaways first in every other one
                found[kind].append(await clients.window(kind, seconds))
        for lane in lanes:
            lane.cancel()
    return found


def lines(found: dict[str, list[Window]]) -> Iterator[str]:
    """Show the windows of each kind, and their ratios to the control."""
    for kind in KINDS:
        windows = found[kind]
        p50, p99 = (1e3 * statistics.median(each.quantile(share) for each in windows) for share in (0.5, 0.99))
        beside = [took for each in windows for took in each.beside]
        gaps = sum(len(each.gaps) for each in windows)
        line = f"{kind}: ms between tokens p50 {p50:.2f} p99 {p99:.2f}, {gaps} tokens; {len(beside)} requests beside"
        if beside:
            line += f", {1e3 * statistics.median(beside):.1f} ms each"
        if control := CONTROL.get(kind):
            ratios = [
                statistics.median(
                    each.quantile(share) / other.quantile(share)
                    for each, other in zip(windows, found[control], strict=True)
                )
                for share in (0.5, 0.99)
            ]
            line += f"; ratio to {control} p50 {ratios[0]:.3f} p99 {ratios[1]:.3f}"
        yield line


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "0.5b")
    parser.add_argument("--streams", type=at_least(1), default=8, help="at once")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="of windows; the medians are printed")
    parser.add_argument("--seconds", type=above_zero, default=7.0, help="of a window")
    parser.add_argument("--rate", type=above_zero, default=8.0, help="requests a second beside the streams, at most")
    add_quantize(parser)
    add_cache_dir(parser)
    smoke = {"model": "tiny", "streams": SMOKE_SLOTS - 1, "rounds": 1, "seconds": 1.0}
    return parsed(parser, words, smoke=smoke)


@contextmanager
def keys_file() -> Iterator[str]:
    """Yield the path of a file with the API keys."""
    with tempfile.NamedTemporaryFile("w") as file:  # which nobody else can read
        file.write("".join(f"{key}:{key}\n" for key in (KEY, *KEYS.values())))
        file.flush()
        yield file.name


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends as well
    path = make_model(args.cache_dir, args.model)
    slots = 2 * args.streams  # those of output.py, which has the same graphs then
    setup = Setup(path, args.cache_dir / "graphs", slots, SMOKE_CONTEXT, quantize=args.quantize)
    Engine.load(setup).close()  # compiles every graph, which the server would do beside the streams
    with keys_file() as keys, server(setup, "--api-keys-file", keys) as url:
        clients = Clients(url, args.rate)
        found = asyncio.run(measure(clients, args.streams, args.rounds, args.seconds))
    for line in lines(found):
        print(line)


if __name__ == "__main__":
    main()
