"""The first minutes of a server whose graph cache is empty, beside the same server with the cache filled and llama.cpp.

    python bench/peers/cold_start.py [--model 0.5b] [--precision bf16] [--streams 1 8] [--seconds 60] [--rounds 2]

Each round starts `baton serve` twice on one new cache folder: "cold" with nothing in it, so that graphs are compiled
beside the requests, and "warm" with what the cold one left there. llama-server with the same weights comes next. Each
is put under closed-loop load over SSE as soon as it is ready: --streams requests in flight, prompts of 64 random
tokens, 32 to 160 greedy tokens of output. Figures are medians over the rounds:

  ready      seconds from the start of the process until it is ready
  first 10   tokens a second in the first ten seconds of load; "worst 10" in the worst ten seconds, "all" in all of them
  gap        milliseconds between two tokens of one request: median and 99th percentile
  /warm, /peer   ratios to the warm server and to llama-server, of figures of one round

Build llama.cpp with `python bench/peers/llama_cpp.py`; --alone runs without.
"""

import argparse
import asyncio
import itertools
import json
import random
import signal
import statistics
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actors.process.logs import configure_logging
from bench.harness.closed_loop import percentile
from bench.harness.command_line import at_least, command_line, parsed
from bench.harness.engine import Setup
from bench.harness.http import server
from bench.harness.options import SMOKE_SLOTS, add_cache_dir, add_model, add_out
from bench.harness.shapes import TOKENS, make_model
from bench.harness.sse_client import StreamedAnswer, request
from bench.measurement.markdown import markdown
from bench.measurement.rounds import Others
from bench.peers.build import CPU_OPTIONS, PeerError
from bench.peers.llama_cpp import GREEDY, LlamaCpp
from bench.peers.precisions import PRECISIONS
from bench.peers.weights.to_gguf import convert
from workers.host.topology import usable_cores

CONTEXT = 1024
PROMPT = 64
OUTPUTS = range(32, 161)
WINDOW_S = 10.0
HEADER = ["streams", "server", "ready", "first 10", "worst 10", "all", "gap p50", "gap p99", "first 10 /peer"]
HEADER += ["all /peer", "p99 /warm", "others"]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one server under load."""

    ready_s: float
    windows: list[float]
    """Tokens a second in each whole window of `WINDOW_S`."""
    rate: float
    gap_ms: tuple[float, float]
    """The median and the 99th percentile."""
    others: float
    """The share of the machine's CPUs that other processes used."""

    @classmethod
    def of(
        cls, ready_s: float, answers: Sequence[StreamedAnswer], began: float, ended: float, others: float
    ) -> "Figures":
        stamps = sorted(stamp for answer in answers for stamp in answer.stamps if stamp <= ended)
        gaps = [1e3 * (b - a) for answer in answers for a, b in itertools.pairwise(answer.stamps) if b <= ended]
        count = max(1, int((ended - began) / WINDOW_S))
        size = min(WINDOW_S, ended - began)
        inside = [sum(began + at * size < stamp <= began + (at + 1) * size for stamp in stamps) for at in range(count)]
        gap = (percentile(gaps, 0.5) or 0.0, percentile(gaps, 0.99) or 0.0)
        return cls(ready_s, [tokens / size for tokens in inside], len(stamps) / (ended - began), gap, others)


async def closed_loop(url: str, extra: Mapping[str, Any], streams: int, seconds: float) -> list[StreamedAnswer]:
    """Keep `streams` requests in flight for some seconds; returns the answers, the last ones unfinished.

    Raises `BadAnswerError` and OSError.
    """
    randomness = random.Random(streams)
    target = urllib.parse.urlsplit(url)
    answers: list[StreamedAnswer] = []

    async def lane() -> None:
        while True:
            body = {
                "model": "bench",
                "prompt": randomness.choices(TOKENS, k=PROMPT),
                "max_tokens": randomness.choice(OUTPUTS),
                "temperature": 0.0,
                "ignore_eos": True,
                "stream": True,
                **extra,
            }
            answers.append(StreamedAnswer(time.perf_counter()))
            await request(target, "/v1/completions", "", body, answers[-1])

    lanes = [asyncio.create_task(lane()) for _ in range(streams)]
    done, running = await asyncio.wait(lanes, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for each in done:  # a lane ends with an error alone
        each.result()
    return answers


def measure(
    start: Callable[[], AbstractContextManager[str]], extra: Mapping[str, Any], streams: int, seconds: float
) -> Figures:
    """Start a server and put it under load from the moment when it is ready."""
    launched = time.perf_counter()
    with start() as url:
        began = time.perf_counter()
        others = Others()
        answers = asyncio.run(closed_loop(url, extra, streams, seconds))
        return Figures.of(began - launched, answers, began, began + seconds, max(0.0, others.share()))


class ColdStart:
    """One model in one precision."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._path = make_model(args.cache_dir, args.model)
        self._peer = None if args.alone else LlamaCpp.find(args.llama_cpp, usable_cores(), args.cpu)
        self._precision = PRECISIONS[args.precision]
        self._gguf = self._path.with_name(f"{self._path.name}-{self._precision.gguf}.gguf")
        if self._peer is not None and not self._gguf.exists():
            convert(self._path, self._gguf, self._precision.gguf)

    def round(self, streams: int) -> dict[str, Figures]:
        """Measure every server once."""
        args = self._args
        found: dict[str, Figures] = {}
        with tempfile.TemporaryDirectory(prefix="baton-cold-") as folder:
            for name, seconds in (("cold", args.seconds), ("warm", args.warm_seconds)):
                found[name] = measure(lambda: server(self._setup(Path(folder))), {}, streams, seconds)
        if (peer := self._peer) is not None:
            start = partial(peer.server, self._gguf, streams, CONTEXT)
            found["llama-server"] = measure(start, GREEDY, streams, args.warm_seconds)
        return found

    def _setup(self, cache: Path) -> Setup:
        args, precision = self._args, self._precision
        return Setup(self._path, cache, args.slots, CONTEXT, precision.dtype, precision.quantize, args.device, args.cpu)


def cells(streams: int, name: str, rounds: Sequence[Mapping[str, Figures]]) -> list[str]:
    """The line of one server."""

    def median(figure: Callable[[Figures], float]) -> float:
        return statistics.median(figure(one[name]) for one in rounds)

    def ratio(other: str, figure: Callable[[Figures], float], peers: Callable[[Figures], float]) -> str:
        pairs = [(figure(one[name]), peers(one[other])) for one in rounds if other in one]
        ratios = [own / its for own, its in pairs if its]  # 0 is no token at all
        return f"{statistics.median(ratios):.2f}x" if ratios else ""

    def rate(figures: Figures) -> float:
        return figures.rate

    return [
        str(streams),
        name,
        f"{median(lambda figures: figures.ready_s):.1f}",
        f"{median(lambda figures: figures.windows[0]):.1f}",
        f"{median(lambda figures: min(figures.windows)):.1f}",
        f"{median(rate):.1f}",
        f"{median(lambda figures: figures.gap_ms[0]):.1f}",
        f"{median(lambda figures: figures.gap_ms[1]):.1f}",
        ratio("llama-server", lambda figures: figures.windows[0], rate),
        ratio("llama-server", rate, rate),
        ratio("warm", lambda figures: figures.gap_ms[1], lambda figures: figures.gap_ms[1]),
        f"{median(lambda figures: figures.others):.0%}",
    ]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    add_model(parser, "0.5b")
    parser.add_argument("--precision", choices=list(PRECISIONS), default="bf16", help="of the weights")
    parser.add_argument("--streams", nargs="+", type=at_least(1), default=[1, 8], help="requests in flight")
    parser.add_argument("--slots", type=at_least(1), default=8, help="sequences that the server holds at once")
    parser.add_argument("--seconds", type=at_least(1), default=60, help="of load on the cold server")
    parser.add_argument("--warm-seconds", type=at_least(1), default=20, help="of load on the others")
    parser.add_argument("--rounds", type=at_least(1), default=2, help="medians are printed")
    parser.add_argument("--device", default="", help="of the IREE backend; empty is its default")
    parser.add_argument("--cpu", choices=list(CPU_OPTIONS), default="host", help="whose instructions all use")
    parser.add_argument("--llama-cpp", type=Path, help="the folder of llama-server and llama-bench")
    parser.add_argument("--alone", action="store_true", help="without llama.cpp")
    add_cache_dir(parser)
    out = add_out(parser, "cold_start")
    smoke = out | {"model": "tiny", "streams": [SMOKE_SLOTS], "slots": SMOKE_SLOTS, "seconds": 2, "warm_seconds": 1}
    args = parsed(parser, words, smoke=smoke | {"rounds": 1})
    args.alone |= args.smoke and args.llama_cpp is None
    return args


def main() -> None:
    args = arguments()
    configure_logging("bench", "warning")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end as well
    try:
        bench = ColdStart(args)
        measured = {streams: [bench.round(streams) for _ in range(args.rounds)] for streams in args.streams}
    except PeerError as error:
        sys.exit(f"{error} (--alone measures without llama.cpp)")
    lines = [cells(streams, name, rounds) for streams, rounds in measured.items() for name in rounds[0]]
    table = markdown(HEADER, lines)
    args.out.mkdir(parents=True, exist_ok=True)
    raw = {
        streams: [{name: asdict(one) for name, one in each.items()} for each in rounds]
        for streams, rounds in measured.items()
    }
    (args.out / "cold_start.json").write_text(json.dumps(raw, indent=1))
    (args.out / "cold_start.md").write_text(table + "\n")
    print(f"{args.model} {args.precision}, {args.slots} slots\n\n{table}\n\nwritten to {args.out}")


if __name__ == "__main__":
    main()
