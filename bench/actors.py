"""The cost of the actor system and of its link, beside the limit and beside others, in one interleaved run.

    python bench/actors.py [--rounds 5] [--trips 2000] [--frames 4000]

Local: messages that one actor handles a second (`tell`), and answers one asker gets a second (`ask`).
Across processes (two, a fresh child for each figure, the same bytes for all):

  trip_us     microseconds for 32 bytes there and back, p50 of each round
  tokens_s    token events a second: the child encodes `Step` frames of 64 deltas, one message each; the parent decodes
              them. The clock runs from the first frame received to the last.

`pyzmq` blocks in PAIR sockets and is the limit; `pyzmq reader` is the minimum that an asyncio process does with one;
`pyzmq asyncio` is pyzmq's own asyncio socket; `pipe` is multiprocessing's. `xoscar` (an actor framework) is measured
where it can be imported. Rounds of all alternate; medians over the rounds are printed.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from actors.actor import Actor, ReplyTo
from actors.system import ActorSystem
from bench.harness.command_line import at_least, command_line, parsed
from bench.links.bare_zmq import reader_parent, zmq_asyncio_parent, zmq_parent
from bench.links.baton_link import link_parent
from bench.links.meter import STEP, Figures
from bench.links.pipe import pipe_parent
from bench.links.xoscar_actors import xoscar_across, xoscar_local
from protocol.codec import encode

XOSCAR_ASKS = 2000


@dataclass(frozen=True, slots=True)
class Total:
    """Ask for the sum so far."""

    reply: ReplyTo[int]


class Adder(Actor[int | Total]):
    def __init__(self) -> None:
        self.total = 0

    def handle(self, message: int | Total) -> None:
        if isinstance(message, Total):
            message.reply.send(self.total)
        else:
            self.total += message


async def local_figures(messages: int) -> Figures:
    """Messages to one actor of this process."""
    async with ActorSystem() as system:
        ref = system.spawn("adder", Adder())
        await ref.ask(Total, timeout=60)
        began = time.perf_counter()
        for _ in range(messages // 1000):
            for _ in range(1000):
                ref.tell(1)
            await ref.ask(Total, timeout=60)
        sent = time.perf_counter()
        for _ in range(messages // 10):
            await ref.ask(Total, timeout=60)
        asked = time.perf_counter()
        ref.stop()
    return {"tell_s": messages / (sent - began), "ask_s": messages / 10 / (asked - sent)}


def contestants(trips: int, frames: int, messages: int) -> dict[str, Callable[[], Figures]]:
    """Measured systems, by name."""
    runs: dict[str, Callable[[], Figures]] = {
        "local actors": lambda: anyio.run(local_figures, messages),
        "baton link": lambda: anyio.run(link_parent, trips, frames),
        "pyzmq": lambda: zmq_parent(trips, frames),
        "pyzmq asyncio": lambda: asyncio.run(zmq_asyncio_parent(trips, frames)),
        "pyzmq reader": lambda: asyncio.run(reader_parent(trips, frames)),
        "pipe": lambda: pipe_parent(trips, frames),
    }
    try:
        import xoscar
    except ImportError as error:
        print(f"xoscar is not measured: {error} (pip install xoscar into this environment)", file=sys.stderr)
    else:
        across = xoscar_across(xoscar)
        runs["xoscar"] = lambda: asyncio.run(_await(across(trips, frames // 10)))
        runs["xoscar local"] = lambda: asyncio.run(xoscar_local(xoscar, XOSCAR_ASKS))
    return runs


async def _await(figures: Awaitable[Figures]) -> Figures:
    return await figures


def show(results: dict[str, list[Figures]]) -> None:
    """Print the medians, and each round trip beside those of bare pyzmq."""
    columns = {"trip_us": "round trip, us", "tokens_s": "tokens/s", "tell_s": "tell/s", "ask_s": "ask/s"}
    medians = {
        name: {column: statistics.median(run[column] for run in runs) for column in runs[0]}
        for name, runs in results.items()
    }
    limits = ("pyzmq", "pyzmq reader", "pyzmq asyncio")
    titles = [*columns.values(), *(f": {name}" for name in limits)]
    print(f"{'':14}" + "".join(f"{title:>16}" for title in titles))
    for name, figures in medians.items():
        cells = "".join(f"{figures[column]:16,.0f}" if column in figures else " " * 16 for column in columns)
        if trip := figures.get("trip_us"):
            cells += "".join(f"{trip / medians[limit]['trip_us']:15.2f}x" for limit in limits)
        print(f"{name:14}{cells}")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=at_least(1), default=5, help="runs of each figure; medians are printed")
    parser.add_argument("--trips", type=at_least(1), default=2000, help="round trips of one run")
    parser.add_argument("--frames", type=at_least(2), default=4000, help="frames of one run")
    parser.add_argument("--messages", type=at_least(1000), default=20_000, help="to a local actor in one run")
    return parsed(parser, words, smoke={"rounds": 1, "trips": 20, "frames": 100, "messages": 1000})


def main() -> None:
    args = arguments()
    runs = contestants(args.trips, args.frames, args.messages)
    results: dict[str, list[Figures]] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            results[name].append(run())
    print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, pyzmq {zmq.__version__}", end=", ")
    print(f"libzmq {zmq.zmq_version()}, {len(encode(STEP))} bytes a step; medians of {args.rounds} rounds")
    show(results)


if __name__ == "__main__":
    main()
