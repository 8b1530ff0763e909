"""Streams of a remote worker over slow, lossy and interrupted links, beside an undisturbed one in the same run.

    python bench/gateway_load/links.py [--backend scripted|iree] [--rate 50] [--streams 4] [--tokens 50] [--rounds 3]
        [--interruptions 0.5 1 2 4 8 30] [--bytes]

The gateway and the client are in this process, the worker and its supervisor in processes of their own. Between them
are two network namespaces whose packets this process forwards (`bench/networks/packet_link.py`), so that the TCP of
both sides is the kernel's. Where the system has no namespaces, and with --bytes, it is a TCP proxy, in which loss is a
stall. With each link, --streams streams run --rounds times: shown are the median time to the first token, percentiles
of the time between two tokens. Then the link is interrupted in the middle of the streams for each of --interruptions
seconds, with a second worker beside the gateway: shown are the longest gap of a stream, and whether the worker stayed
(`same`) or the streams went on with the other one (`moved`). A token that is lost, doubled or not that of the
undisturbed link ends the benchmark.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import anyio

from actors.process.logs import configure_logging
from bench.harness.command_line import above_zero, at_least, command_line, parsed
from bench.networks.impairment import Impairment
from bench.networks.packet_link import NoNamespaces, PacketLink
from models import builtin_path
from tests.gateway.harness.real import launch
from tests.gateway.networks.linked import LONG, Linked, linked, linked_over_packets

LINKS = {
    "undisturbed": Impairment(),
    "1 ms": Impairment(delay_s=0.001),
    "50 ms": Impairment(delay_s=0.05),
    "50 ms, jitter 20 ms": Impairment(delay_s=0.05, jitter_s=0.02),
    "200 ms": Impairment(delay_s=0.2),
    "5 ms, 1 % lost": Impairment(delay_s=0.005, loss=0.01),
    "5 ms, 5 % lost": Impairment(delay_s=0.005, loss=0.05),
    "20 ms, 25 % reordered": Impairment(delay_s=0.02, reorder=0.25),
    "5 ms, 1 Mbit/s": Impairment(delay_s=0.005, bits_per_s=1e6),
}
"""By name; the delay is that of one direction."""
SMOKE = ("undisturbed", "50 ms")
MIDDLE = 10
"""The event of a stream at which the link is interrupted."""

OpenLink = Callable[..., AbstractAsyncContextManager[Linked]]


@dataclass
class ClientTimes:
    """Times that clients measured of some streams, in milliseconds."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    answers: set[tuple[int, ...]] = field(default_factory=set)


async def stream(made: Linked, tokens: int, seen: ClientTimes, middle: Callable[[], None] = lambda: None) -> None:
    """Run one stream. `middle` is called at its `MIDDLE`th event."""
    answer: list[int] = []
    ends = events = 0
    body: dict[str, Any] = LONG | {"max_tokens": tokens, "return_token_ids": True}
    last = time.perf_counter()
    async with made.door.real.client.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            (choice,) = json.loads(line.removeprefix("data: "))["choices"]
            now = time.perf_counter()
            (seen.gaps if events else seen.first).append(1000 * (now - last))
            last, events = now, events + 1
            answer += choice["token_ids"]
            ends += choice["finish_reason"] is not None
            if events == MIDDLE:
                middle()
    if ends != 1:
        raise SystemExit(f"a stream ended {ends} times")
    seen.answers.add(tuple(answer))


async def streams(made: Linked, args: argparse.Namespace, middle: Callable[[], None] = lambda: None) -> ClientTimes:
    """Run the streams of one round."""
    seen = ClientTimes()
    async with anyio.create_task_group() as group:
        for _ in range(args.streams):
            group.start_soon(stream, made, args.tokens, seen, middle)
    return seen


async def measure_links(made: Linked, args: argparse.Namespace) -> tuple[int, ...]:
    """Print the table of links. Returns the tokens of a stream."""
    print(f"{'link':24}{'first ms':>10}{'gap p50':>10}{'p99':>10}{'max':>10}")
    reference: set[tuple[int, ...]] = set()
    for name in SMOKE if args.smoke else LINKS:
        made.link.set(LINKS[name])
        every = [await streams(made, args) for _ in range(args.rounds)]
        gaps = sorted(gap for seen in every for gap in seen.gaps)
        first = statistics.median(ms for seen in every for ms in seen.first)
        p99 = gaps[int(0.99 * (len(gaps) - 1))]
        print(f"{name:24}{first:10.1f}{statistics.median(gaps):10.1f}{p99:10.1f}{gaps[-1]:10.1f}", flush=True)
        reference |= set().union(*(seen.answers for seen in every))
        if len(reference) != 1:
            raise SystemExit(f"the tokens over {name!r} are not those of the undisturbed link")
    made.link.set(LINKS["undisturbed"])
    return reference.pop()


async def measure_interruption(
    made: Linked, args: argparse.Namespace, lasts_s: float, expected: tuple[int, ...]
) -> None:
    """Interrupt the link once in the middle of the streams, and print a line."""
    before = made.door.status("far").incarnation
    begun: list[bool] = []
    async with anyio.create_task_group() as group:

        async def interrupt() -> None:
            made.link.interrupt()
            await anyio.sleep(lasts_s)
            made.link.heal()

        def once() -> None:
            if not begun:
                begun.append(True)
                group.start_soon(interrupt)

        seen = await streams(made, args, once)
    if seen.answers != {expected}:
        raise SystemExit(f"the tokens over an interruption of {lasts_s:g} s are not those of the undisturbed link")
    await made.door.ready("far", before)
    stayed = made.door.status("far").incarnation == before and not made.door.status("far").restarts
    print(f"{lasts_s:8g}{max(seen.gaps) / 1000:12.2f}   {'same' if stayed else 'moved'}", flush=True)


async def measure(args: argparse.Namespace, open_link: OpenLink) -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as folder:
        worker: dict[str, Any] = {"tokens_per_second": args.rate}
        if args.backend == "iree":
            worker = {"backend": "iree", "model_path": str(builtin_path()), "context": 512}
        async with open_link(Path(folder), impairment=Impairment()) as made:
            with made.joining(**worker):
                await made.door.ready("far")
                expected = await measure_links(made, args)
        if args.backend != "scripted":
            return
        print(f"\n{'lasts s':>8}{'max gap s':>12}   worker")
        for number, lasts_s in enumerate(args.interruptions):
            near = launch("near", rate=args.rate)
            async with open_link(Path(folder, str(number)), near, impairment=Impairment(delay_s=0.005)) as made:
                with made.joining(**worker):
                    await made.door.ready("far")
                    await measure_interruption(made, args, lasts_s, expected)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--backend",
        choices=("scripted", "iree"),
        default="scripted",
        help="engine of the worker; iree runs the built-in model, and no interruptions",
    )
    parser.add_argument(
        "--rate", type=above_zero, default=50.0, help="tokens a second of each stream of a scripted worker"
    )
    parser.add_argument("--streams", type=at_least(1), default=4, help="streams at once")
    parser.add_argument("--tokens", type=at_least(MIDDLE + 1), default=50, help="tokens of each stream")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="times that the streams run over each link")
    parser.add_argument(
        "--interruptions",
        type=above_zero,
        nargs="+",
        default=[0.5, 1.0, 2.0, 4.0, 8.0, 30.0],
        help="seconds for which the link is interrupted",
    )
    parser.add_argument("--bytes", action="store_true", help="use the proxy, also where there are namespaces")
    return parsed(parser, words, smoke={"streams": 2, "tokens": 12, "rounds": 1, "interruptions": [0.2]})


async def main(args: argparse.Namespace) -> None:
    """Measure over packets where that is possible."""
    open_link: OpenLink = linked
    if not args.bytes:
        try:
            with PacketLink(Impairment()):
                open_link = linked_over_packets
        except NoNamespaces as error:
            print(f"over bytes, as there are no namespaces: {error}")
    await measure(args, open_link)


if __name__ == "__main__":
    configure_logging("bench", "error")
    anyio.run(main, arguments())
