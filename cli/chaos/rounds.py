"""A round: concurrent requests, perhaps with a fault at a chosen moment, and a comparison with an undisturbed round."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cli.chaos.http_client import ClientRequest, ServerAddress, send
from cli.chaos.transcript import Transcript

POLL_S = 0.001
"""Between two checks whether the moment of the fault has come."""


@dataclass(frozen=True)
class FaultTrigger:
    """Calls `inject` once, when all requests were sent and some stream has received this many tokens."""

    tokens: int
    inject: Callable[[], None]

    def reached(self, streams: Sequence[Transcript]) -> bool:
        return max(stream.tokens for stream in streams) >= self.tokens


async def run_round(
    server: ServerAddress, requests: Sequence[ClientRequest], trigger: FaultTrigger | None = None
) -> tuple[list[Transcript], float | None]:
    """Send all requests at once and inject the fault.

    Returns the transcripts and the time of the fault, on the clock of `Transcript.stamps`. An error of a connection is
    recorded in its transcript with the code `connection`.
    """
    streams = [Transcript() for _ in requests]
    sent = asyncio.Semaphore(0)
    injected_at: float | None = None

    async def one(request: ClientRequest, transcript: Transcript) -> None:
        try:
            await send(server, request, transcript, sent=sent.release)
        except (OSError, ValueError, asyncio.LimitOverrunError) as error:
            transcript.errors.append(("connection", repr(error)))
            sent.release()

    async with asyncio.TaskGroup() as group:
        for request, transcript in zip(requests, streams, strict=True):
            group.create_task(one(request, transcript))
        if trigger is not None:
            for _ in requests:
                await sent.acquire()
            while not trigger.reached(streams) and not all(map(_over, streams)):  # noqa: ASYNC110  read in many tasks
                await asyncio.sleep(POLL_S)
            injected_at = time.perf_counter()
            trigger.inject()
    return streams, injected_at


def _over(transcript: Transcript) -> bool:
    return bool(transcript.ends or transcript.errors)


@dataclass(frozen=True)
class ClientImpact:
    """The effects of a fault on the clients of one round or several."""

    streams: int = 0
    failed: int = 0
    """Streams with an error or an incorrect end (`Transcript.violation`)."""
    duplicated: int = 0
    """Streams with more token ids than undisturbed."""
    altered: int = 0
    """Streams with other token ids, text, finish reasons or usage than undisturbed."""
    gaps_s: tuple[float, ...] = ()
    """The longest gap of each stream that had begun before the fault and was interrupted."""
    undisturbed_s: float = 0.0
    """The longest time between two chunks of the undisturbed streams."""
    problem: str = ""
    """The reason of the first failed stream."""

    @property
    def bad(self) -> int:
        """The number of streams that noticed more than a gap."""
        return self.failed + self.duplicated + self.altered

    def __add__(self, other: "ClientImpact") -> "ClientImpact":
        return ClientImpact(
            self.streams + other.streams,
            self.failed + other.failed,
            self.duplicated + other.duplicated,
            self.altered + other.altered,
            self.gaps_s + other.gaps_s,
            max(self.undisturbed_s, other.undisturbed_s),
            self.problem or other.problem,
        )


def compare(
    requests: Sequence[ClientRequest],
    streams: Sequence[Transcript],
    injected_at: float | None,
    undisturbed: Sequence[Transcript],
) -> ClientImpact:
    """Compare a round with the undisturbed one of the same requests. `injected_at` is None if the time is unknown."""
    problems = [_problem(stream, request.choices) for request, stream in zip(requests, streams, strict=True)]
    pairs = [(stream, other) for stream, other, bad in zip(streams, undisturbed, problems, strict=True) if not bad]
    duplicated = sum(stream.tokens > other.tokens for stream, other in pairs)
    altered = sum(not stream.same(other) and stream.tokens <= other.tokens for stream, other in pairs)
    longest = max((stream.gap() for stream in undisturbed), default=0.0)
    begun = [stream for stream in streams if stream.stamps and (injected_at is None or stream.stamps[0] <= injected_at)]
    # A stream whose worker was left alone has no gap that is longer than those without the fault.
    gaps = tuple(gap for stream in begun if (gap := stream.gap(injected_at or 0.0)) > longest)
    failed = [problem for problem in problems if problem]
    return ClientImpact(len(streams), len(failed), duplicated, altered, gaps, longest, failed[0] if failed else "")


def _problem(stream: Transcript, choices: int) -> str:
    if stream.errors:
        return ": ".join(stream.errors[0])
    return stream.violation(choices)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which `share` of the values lie; None without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
