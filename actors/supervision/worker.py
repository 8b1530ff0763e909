"""What others know of a worker, local or remote: its status, and what it notifies its watchers of."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from actors.process.exit_cause import Origin
from protocol.events import Event, Gauges, Hello, Loading, Ready


class WorkerState(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    """The process runs, or is about to; it has not said `Hello`."""
    LOADING = "loading"
    """It said `Hello` and was welcomed."""
    READY = "ready"
    DRAINING = "draining"
    """It was asked to leave; only cancels reach it."""
    BACKOFF = "backoff"
    """It failed, and is started again after a delay."""
    STOPPED = "stopped"
    """It left because it was asked to, or has never been started."""
    GIVEN_UP = "given_up"
    """It failed too often."""


@dataclass(frozen=True, slots=True)
class LastFailure:
    """How a worker's latest incarnation to end unasked ended."""

    incarnation: int
    reason: str
    origin: Origin
    at: float
    """Event loop time."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker at one moment. `incarnation` counts its starts from 1, `restarts` those that followed a failure; what
    comes after `running` is of this incarnation, while there is one."""

    name: str
    state: WorkerState
    incarnation: int
    restarts: int
    reason: str = ""
    """Why it is not serving, when it is not."""
    last_failure: LastFailure | None = None
    """Stays when it serves again; None before the first."""
    running: bool = True
    """It is kept alive; false once it was stopped or given up, and before its first start."""
    pid: int | None = None
    hello: Hello | None = None
    ready: Ready | None = None
    gauges: Gauges = field(default_factory=Gauges)
    loading: Loading | None = None
    last_progress: float = 0.0
    """Event loop time of the last frame that showed progress: any frame of an idle worker, but only one whose
    `gauges.steps` advanced of a worker with work in flight."""
    hang_s: float = 0.0
    """Seconds without a finished step, with work in flight, after which this incarnation counts as hung."""
    last_frame: float = math.inf
    """Event loop time of its last frame of any kind, of which one is due each second; infinite while none is due."""
    address: str = ""
    """Where a remote worker connected from; empty for one of this machine. Its `pid` is its own machine's."""


class WorkerEvent(Struct, frozen=True):
    """A `Step`, `Beat`, `Finished` or `Failed` arrived."""

    worker: str
    incarnation: int
    event: Event


class WorkerChanged(Struct, frozen=True):
    """The state or the loading progress changed."""

    status: WorkerStatus


class GraceEnded(Struct, frozen=True):
    """An incarnation that was asked to leave still runs, and has had the time to finish what it has."""

    worker: str
    incarnation: int


class IncarnationLost(Struct, frozen=True):
    """An incarnation that had said `Hello` is gone: once, after its last event. Its live streams must be ended."""

    worker: str
    incarnation: int
    reason: str
    origin: Origin
    """Whether something in it or somebody else ended it."""
    asked: bool = False
    """It left because it was asked to."""


WorkerNotice = WorkerEvent | WorkerChanged | GraceEnded | IncarnationLost
"""What a worker notifies its watchers of, in the order in which it happened."""


class WorkerUnavailable(Exception):
    """Raised by `send_nowait` when the worker does not take these commands now. None of them was sent."""
