"""The fault plan of a soak: pure functions of its seed, so that a failure can be run again.

There are two kinds of faults. SIGKILL and SIGSTOP come from outside, to a random worker at a random time. The others
are in the worker's own plan (`workers/faults/plan.py`), which each incarnation but the first is started with.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.chaos.faults import FIRST_MESSAGE, LOAD_FAULTS, SLOW_S
from workers.faults.plan import CALL_FAULTS, LINK_FAULTS, CallFault, Fault, LinkFault

OUTSIDE = ("kill", "stop")
FAILED_LOADS = 0.4
"""Share of the incarnations that may fail to start."""


@dataclass(frozen=True)
class SoakPlan:
    """The settings of a soak."""

    seed: int
    seconds: float
    clients: int
    requests: int
    every_s: float
    """Mean time between two faults from outside."""
    scripted: bool
    rate: float
    """Decode steps a second of a scripted worker; faults from within are planned for any worker as if it had them."""
    workers: int
    standby: int
    slots: int
    cache: Path
    sample_s: float = 3.0
    longest: int = 120
    """Words of a prompt."""
    tokens: int = 120
    """The tokens of an answer."""
    backend: str = "iree"
    """The backend of workers that are not scripted."""
    attackers: int = 0
    """Attackers at once, beside the clients."""
    turns: Path | None = None
    """The file for the longest turn of the gateway's event loop; None: it is not measured."""

    def faults(self, worker: str, incarnation: int) -> tuple[Fault, ...]:
        """The faults from within of one incarnation of a worker."""
        return faults_of_life(self.seed, worker, incarnation, calls=max(1, int(self.rate * self.every_s)))

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
            "log_level": "info",  # which records the failures that each request lived through
        }


@dataclass(frozen=True)
class OutsideFault:
    """A signal from outside, `after_s` seconds after the one before."""

    after_s: float
    kind: str
    worker: int
    """Index of the worker among those that may get a signal, modulo their number."""


def outside_faults(seed: int, every_s: float) -> Iterator[OutsideFault]:
    """Yield faults without end, `every_s` seconds apart on average."""
    rng = random.Random(f"blows {seed}")
    while True:
        # Never sooner than a tenth of the mean; the rest is exponential, as independent faults are.
        after_s = 0.1 * every_s + rng.expovariate(1.0 / (0.9 * every_s))
        yield OutsideFault(after_s, rng.choice(OUTSIDE), rng.randrange(1 << 16))


def may_fail_to_start(incarnation: int) -> bool:
    """Return True if a fault may happen before the worker is ready: in every second incarnation.

    A worker whose starts fail five times in a row is given up, as it should be, and a long soak would reach that by
    chance.
    """
    return incarnation % 2 == 1


def faults_of_life(seed: int, worker: str, incarnation: int, *, calls: int) -> tuple[Fault, ...]:
    """The faults from within of one incarnation: none in the first, so that there are references; then either a failed
    load, or up to three calls or messages, on average `calls` apart. It often ends before they come."""
    if incarnation == 1:
        return ()
    rng = random.Random(f"life {seed} {worker} {incarnation}")
    early = may_fail_to_start(incarnation)
    if early and rng.random() < FAILED_LOADS:
        return (Fault(rng.choice(LOAD_FAULTS)),)
    found = []
    call = 0
    for _ in range(rng.randint(1, 3)):
        call += 1 + int(rng.expovariate(1.0 / calls))
        kind = rng.choice([*CALL_FAULTS, *LINK_FAULTS])
        found.append(_fault(rng, kind, call if early or kind not in LINK_FAULTS else FIRST_MESSAGE + call))
    return tuple(found)


def _fault(rng: random.Random, kind: CallFault | LinkFault, call: int) -> Fault:
    if kind in ("slow", "slow_link"):
        return Fault(kind, call, calls=rng.randint(2, 20), seconds=SLOW_S)
    return Fault(kind, call)


def kinds(lives: Sequence[tuple[Fault, ...]]) -> dict[str, int]:
    """Count each kind of fault in the plans of these incarnations."""
    counts: dict[str, int] = {}
    for faults in lives:
        for fault in faults:
            counts[fault.kind] = counts.get(fault.kind, 0) + 1
    return counts
