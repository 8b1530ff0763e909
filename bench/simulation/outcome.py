"""The outcome of a simulation: what became of each request, what it cost, and how good the routing was."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.simulation.client import ReceivedStream
from bench.simulation.ideal import ideal_waits
from bench.simulation.scenario import Scenario
from gateway.routing.failure import Cause
from gateway.routing.failure_attribution import MAX_TRIES
from protocol.errors import ErrorCode

FROM_WITHIN = frozenset({Cause.DIED, Cause.STEP})
"""Causes of a failure that something may have caused which the worker ran."""
MAX_WITHIN = 2
"""Such failures in a row, of which the last one is attributed to the request."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A stream that went from a lost worker to another one, in seconds."""

    silent_s: float
    """From its last token there until the gateway noticed the loss."""
    queued_s: float
    """From then until another worker got it."""
    gap_s: float
    """Between the tokens before and after."""
    cause: str


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The end of the simulated world: the same for the same scenario."""

    codes: dict[str, int]
    """Requests by their end: `finished`, or the code of an error."""
    lost: int
    """Requests without an end, or with fewer tokens than they asked for although they finished."""
    doubled: int
    """Requests with two ends."""
    altered: int
    """Tokens that were not those of an undisturbed run."""
    refused_early: int
    """Requests that were quarantined although neither all tries nor two failures from within were over."""
    left_over: tuple[str, ...]
    """Entries that the ledger of a gateway still has although all requests have ended."""
    seconds: float
    """Virtual seconds from the first request to the last end."""
    tokens: int
    waits_s: tuple[float, ...]
    """Seconds until each request that finished had a slot."""
    first_token_s: float
    """The mean time from a request to its first token."""
    ideal_wait_s: float
    """The mean wait of the same requests in one queue before all slots."""
    imbalance: float
    """The standard deviation of the tokens of a worker, relative to their mean."""
    placed: tuple[tuple[float, str, float], ...]
    """For each request that finished, in the order in which workers got them: the time, the client, and
    what its tokens cost its share."""
    moved: tuple[Moved, ...]
    restarts: int
    """Requests that were sent again to another gateway, as theirs was gone."""
    restart_gaps_s: tuple[float, ...]
    """Seconds without a token of those that had begun."""
    operations: tuple[str, ...]
    """The rolling upgrades, and how each ended."""

    @property
    def intact(self) -> bool:
        """Nothing is lost, doubled, altered, refused too early or left over."""
        return not (self.lost or self.doubled or self.altered or self.refused_early or self.left_over)

    def served(self, first: int, last: int) -> dict[str, float]:
        """Return what each client was served by the requests that workers got between these numbers."""
        served: dict[str, float] = {}
        for _, client, cost in self.placed[first:last]:
            served[client] = served.get(client, 0.0) + cost
        return served

    @property
    def wait_s(self) -> float:
        """The mean wait for a slot."""
        return statistics.fmean(self.waits_s) if self.waits_s else 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a simulation, which differs from run to run."""

    gateway_us: float
    """CPU microseconds of the code of the gateways for each request, with what it does all the time for its workers,
    while requests come steadily."""
    core: float
    """The part of a core that the code of all gateways takes in that time."""
    model_us: float
    """CPU microseconds of the simulated world for each request."""
    garbage: float
    """Objects of each request that only the garbage collector freed."""
    idle_us: float
    """CPU microseconds for each link to a worker and each second without requests."""
    idle_memory_bytes: int
    """Growth of the process by the gateways and the world, from the start until all workers are ready."""
    memory_bytes: int
    """The same until all requests have ended."""


def quantile(values: Sequence[float], part: float) -> float:
    """Return a quantile by nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0


def judge(
    scenario: Scenario,
    received: Sequence[ReceivedStream],
    left_over: Sequence[str],
    operations: Sequence[str],
    seconds: float,
    tokens_of_workers: Sequence[int],
) -> FleetOutcome:
    """Compare what each client got with what it should have got."""
    finished = [each for each in received if each.outcome == "finished"]
    short = [each for each in finished if not each.tokens == each.usage == each.wanted.output]
    slots = scenario.workers * scenario.engine.slots
    ideal = ideal_waits(((each.wanted.arrives_s, each.slot_s) for each in finished), slots)
    mean = statistics.fmean(tokens_of_workers)
    return FleetOutcome(
        codes=dict(sorted(Counter(each.outcome for each in received).items())),
        lost=sum(not each.ends for each in received) + len(short),
        doubled=sum(each.ends > 1 for each in received),
        altered=sum(each.altered for each in received),
        refused_early=sum(each.outcome == ErrorCode.QUARANTINED and not _was_attributed(each) for each in received),
        left_over=tuple(left_over),
        seconds=seconds,
        tokens=sum(each.tokens for each in received),
        waits_s=tuple(each.wait_s for each in finished),
        first_token_s=statistics.fmean(each.first_s for each in finished) if finished else 0.0,
        ideal_wait_s=statistics.fmean(ideal) if ideal else 0.0,
        imbalance=statistics.pstdev(tokens_of_workers) / mean if mean else 0.0,
        placed=tuple(sorted((each.attempts[0].sent_at, each.wanted.client, each.wanted.cost) for each in finished)),
        moved=tuple(moved for each in received for moved in _moved(each)),
        restarts=sum(each.restarts for each in received),
        restart_gaps_s=tuple(gap for each in received for gap in each.restart_gaps_s),
        operations=tuple(operations),
    )


def _was_attributed(received: ReceivedStream) -> bool:
    """It had every try, or two failures from within, which may both have had other causes: see
    `gateway.routing.failure_attribution`."""
    within = sum(attempt.cause in FROM_WITHIN for attempt in received.attempts)
    return len(received.attempts) >= MAX_TRIES or within >= MAX_WITHIN


def _moved(received: ReceivedStream) -> list[Moved]:
    """The moves of a stream that had begun. Of more than four attempts those between the first ones are known."""
    found = []
    for before, after in zip(received.attempts, received.attempts[1:], strict=False):
        if before.lost_at and before.first_at and after.first_at:
            last_at = before.last_at
            moved = Moved(
                before.lost_at - last_at, after.sent_at - before.lost_at, after.first_at - last_at, before.cause
            )
            found.append(moved)
    return found
