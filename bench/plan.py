"""The plan of faults of a soak: pure functions of its seed, so that a failure can be run again.

There are two kinds. Some strike from outside at a drawn time: SIGKILL and SIGSTOP to a drawn worker. The others are in
the worker's own plan (`workers/faults/plan.py`): each incarnation but the first is told what goes wrong in its life.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.chaos.faults import FIRST_MESSAGE, LOAD_FAULTS, SLOW_S
from workers.faults.plan import CALL_FAULTS, LINK_FAULTS, CallFault, Fault, LinkFault

OUTSIDE = ("kill", "stop")
FAILED_LOADS = 0.4
"""Of the lives that may fail to start."""


@dataclass(frozen=True)
class Plan:
    """What is soaked, and for how long."""

    seed: int
    seconds: float
    clients: int
    requests: int
    every_s: float
    """Between two faults from outside, in the mean."""
    scripted: bool
    rate: float
    """Decode steps a second of a scripted worker, and what the faults within reckon with of any."""
    workers: int
    standby: int
    slots: int
    cache: Path
    sample_s: float = 3.0
    longest: int = 120
    """Words of a prompt."""
    tokens: int = 120
    """Of an answer."""
    backend: str = "iree"
    """Of workers that are not scripted."""

    def faults(self, worker: str, incarnation: int) -> tuple[Fault, ...]:
        """What goes wrong inside one life of a worker."""
        return of_life(self.seed, worker, incarnation, calls=max(1, int(self.rate * self.every_s)))

    def options(self) -> dict[str, object]:
        """Settings of the server."""
        return {
            "name": "chaos",
            "backend": "scripted" if self.scripted else self.backend,
            "context": 2048,
            "workers": self.workers,
            "standby": self.standby,
            "max_batch_size": self.slots,
            "cache_dir": str(self.cache),
            "log_level": "info",  # which tells the failures that each request lived through
        }


@dataclass(frozen=True)
class Blow:
    """A signal from outside, so many seconds after the one before."""

    after_s: float
    kind: str
    worker: int
    """To the worker with this number among those that may be struck, counted round."""


def blows(seed: int, every_s: float) -> Iterator[Blow]:
    """Without end, `every_s` seconds apart in the mean."""
    draw = random.Random(f"blows {seed}")
    while True:
        # Never sooner than a tenth of the mean; the rest is exponential, as independent faults are.
        after_s = 0.1 * every_s + draw.expovariate(1.0 / (0.9 * every_s))
        yield Blow(after_s, draw.choice(OUTSIDE), draw.randrange(1 << 16))


def may_fail_to_start(incarnation: int) -> bool:
    """Something may happen before it is ready: in every second life. A worker whose starts fail five times in a row is
    rightly given up, and a soak that is long enough would come to that by chance."""
    return incarnation % 2 == 1


def of_life(seed: int, worker: str, incarnation: int, *, calls: int) -> tuple[Fault, ...]:
    """What goes wrong inside one life of a worker: nothing in the first, so that there are references; then either its
    load, or up to three calls or messages, `calls` apart in the mean: it often ends before they come."""
    if incarnation == 1:
        return ()
    draw = random.Random(f"life {seed} {worker} {incarnation}")
    early = may_fail_to_start(incarnation)
    if early and draw.random() < FAILED_LOADS:
        return (Fault(draw.choice(LOAD_FAULTS)),)
    found = []
    call = 0
    for _ in range(draw.randint(1, 3)):
        call += 1 + int(draw.expovariate(1.0 / calls))
        kind = draw.choice([*CALL_FAULTS, *LINK_FAULTS])
        found.append(_fault(draw, kind, call if early or kind not in LINK_FAULTS else FIRST_MESSAGE + call))
    return tuple(found)


def _fault(draw: random.Random, kind: CallFault | LinkFault, call: int) -> Fault:
    if kind in ("slow", "slow_link"):
        return Fault(kind, call, calls=draw.randint(2, 20), seconds=SLOW_S)
    return Fault(kind, call)


def kinds(lives: Sequence[tuple[Fault, ...]]) -> dict[str, int]:
    """How often each kind is in the plans of these lives."""
    counts: dict[str, int] = {}
    for faults in lives:
        for fault in faults:
            counts[fault.kind] = counts.get(fault.kind, 0) + 1
    return counts
