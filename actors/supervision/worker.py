"""The status of a worker, local or remote, and the notices that its watchers get."""

import math
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from actors.process.exit_cause import Origin
from protocol.events import Event, Gauges, Hello, Loading, Ready


class WorkerState(StrEnum):
    """The state of a worker."""

    STARTING = "starting"
    """The process is started; it has not sent `Hello`."""
    LOADING = "loading"
    """Connected; it loads its model."""
    READY = "ready"
    DRAINING = "draining"
    """Asked to leave; it gets only cancels."""
    BACKOFF = "backoff"
    """Failed, and restarted after a delay."""
    STOPPED = "stopped"
    """Left as asked, or never started."""
    GIVEN_UP = "given_up"
    """It failed too often."""


@dataclass(frozen=True, slots=True)
class LastFailure:
    """The end of the latest incarnation that ended unasked."""

    incarnation: int
    reason: str
    origin: Origin
    at: float
    """Event loop time."""


class WorkerStatus(Struct, frozen=True):
    """A worker at one moment. `incarnation` counts its starts, `restarts` those that followed a failure. Fields after
    `running` are those of the current incarnation, if there is one."""

    name: str
    state: WorkerState
    incarnation: int
    restarts: int
    reason: str = ""
    """The reason why it does not serve."""
    last_failure: LastFailure | None = None
    """None before the first."""
    running: bool = True
    """False before its first start, and once it was stopped or given up."""
    pid: int | None = None
    hello: Hello | None = None
    ready: Ready | None = None
    gauges: Gauges = Gauges()
    loading: Loading | None = None
    last_progress: float = 0.0
    """Event loop time of the last frame with progress: with work in flight, `gauges.steps` must have advanced."""
    hang_s: float = 0.0
    """Seconds without a finished step, with work in flight, that count as a hang."""
    last_frame: float = math.inf
    """Event loop time of its last frame; infinite while none is due."""
    address: str = ""
    """The address of a remote worker, whose `pid` is its own machine's; empty for a local one."""


class WorkerEvent(Struct, frozen=True):
    """A `Step`, `Heartbeat`, `PromptLogprobs`, `Finished`, `Failed`, `Tokenized`, `Rows`, `RowsWritten` or
    `AdapterChanged` arrived."""

    worker: str
    incarnation: int
    event: Event


class WorkerChanged(Struct, frozen=True):
    """The state or the loading progress changed."""

    status: WorkerStatus


class GraceEnded(Struct, frozen=True):
    """An incarnation that was asked to leave still runs after its grace."""

    worker: str
    incarnation: int


class IncarnationLost(Struct, frozen=True):
    """An incarnation that was connected has ended: once, after its last event. So have its live sequences."""

    worker: str
    incarnation: int
    reason: str
    origin: Origin
    """The origin of its end."""
    asked: bool = False
    """True if it left as asked."""


WorkerNotice = WorkerEvent | WorkerChanged | GraceEnded | IncarnationLost
"""Notices to the watchers of a worker, in the order of the events."""


class WorkerUnavailable(Exception):
    """Raised by `send_nowait` when the worker does not take these commands now. None was sent."""
