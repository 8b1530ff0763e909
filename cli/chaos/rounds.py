"""A round: many requests at once, perhaps a fault at a chosen moment, and what their clients noticed of it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cli.chaos.asking import Request, Server, ask
from cli.chaos.heard import Heard

LOOK_S = 0.001
"""Between two looks at whether the moment has come."""


@dataclass(frozen=True)
class Strike:
    """`act` is called once as soon as all requests were sent and some stream has so many tokens."""

    tokens: int
    act: Callable[[], None]

    def reached(self, streams: Sequence[Heard]) -> bool:
        return max(stream.tokens for stream in streams) >= self.tokens


async def play(
    server: Server, requests: Sequence[Request], strike: Strike | None = None
) -> tuple[list[Heard], float | None]:
    """Send all requests at once, and strike. Returns what each client heard, and when it was struck, in the time of the
    stamps. What goes wrong with a connection is heard as an error with the code `connection`."""
    streams = [Heard() for _ in requests]
    sent = asyncio.Semaphore(0)
    struck_at: float | None = None

    async def one(request: Request, heard: Heard) -> None:
        try:
            await ask(server, request, heard, sent=sent.release)
        except (OSError, ValueError, asyncio.LimitOverrunError) as error:
            heard.errors.append(("connection", repr(error)))
            sent.release()

    async with asyncio.TaskGroup() as group:
        for request, heard in zip(requests, streams, strict=True):
            group.create_task(one(request, heard))
        if strike is not None:
            for _ in requests:
                await sent.acquire()
            while not strike.reached(streams) and not all(map(_over, streams)):  # noqa: ASYNC110  read in many tasks
                await asyncio.sleep(LOOK_S)
            struck_at = time.perf_counter()
            strike.act()
    return streams, struck_at


def _over(heard: Heard) -> bool:
    return bool(heard.ends or heard.errors)


@dataclass(frozen=True)
class Noticed:
    """What the clients of one round, or of several, noticed."""

    streams: int = 0
    failed: int = 0
    """Ended with an error, or not as an answer ends (`Heard.breach`)."""
    duplicated: int = 0
    """Got more token ids than undisturbed."""
    altered: int = 0
    """Differ in any id, character, finish reason or count."""
    gaps_s: tuple[float, ...] = ()
    """Of the streams that had begun and then saw a gap."""
    undisturbed_s: float = 0.0
    """The longest time between two chunks without the fault."""
    problem: str = ""
    """Of the first stream that failed."""

    @property
    def bad(self) -> int:
        """Streams that noticed more than a gap."""
        return self.failed + self.duplicated + self.altered

    def __add__(self, other: "Noticed") -> "Noticed":
        return Noticed(
            self.streams + other.streams,
            self.failed + other.failed,
            self.duplicated + other.duplicated,
            self.altered + other.altered,
            self.gaps_s + other.gaps_s,
            max(self.undisturbed_s, other.undisturbed_s),
            self.problem or other.problem,
        )


def compare(
    requests: Sequence[Request], streams: Sequence[Heard], struck_at: float | None, whole: Sequence[Heard]
) -> Noticed:
    """Hold a round against the undisturbed one of the same requests. `struck_at` None is at some time or other."""
    problems = [_problem(stream, request.choices) for request, stream in zip(requests, streams, strict=True)]
    pairs = [(stream, other) for stream, other, bad in zip(streams, whole, problems, strict=True) if not bad]
    duplicated = sum(stream.tokens > other.tokens for stream, other in pairs)
    altered = sum(not stream.same(other) and stream.tokens <= other.tokens for stream, other in pairs)
    longest = max((stream.gap() for stream in whole), default=0.0)
    begun = [stream for stream in streams if stream.stamps and (struck_at is None or stream.stamps[0] <= struck_at)]
    # Streams of workers that were left alone have no gap that is longer than without the fault.
    gaps = tuple(gap for stream in begun if (gap := stream.gap(struck_at or 0.0)) > longest)
    failed = [problem for problem in problems if problem]
    return Noticed(len(streams), len(failed), duplicated, altered, gaps, longest, failed[0] if failed else "")


def _problem(stream: Heard, choices: int) -> str:
    if stream.errors:
        return ": ".join(stream.errors[0])
    return stream.breach(choices)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the values lie; None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
