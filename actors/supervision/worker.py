"""What a gateway holds of a worker, local or remote: its status, its events, and a way to send it commands."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from actors.process.exit_cause import Origin
from protocol.commands import Command
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
    """A worker at one moment. `incarnation` counts its starts from 1, `restarts` those that followed a failure; `hello`
    to `loading` are of this incarnation."""

    name: str
    state: WorkerState
    pid: int | None
    incarnation: int
    restarts: int
    hello: Hello | None
    ready: Ready | None
    gauges: Gauges
    loading: Loading | None
    last_progress: float
    """Event loop time of the last frame that showed progress: any frame of an idle worker, but only one whose
    `gauges.steps` advanced of a worker with work in flight."""
    reason: str
    """Why it is not serving, when it is not."""
    hang_s: float = 0.0
    """Seconds without a finished step, with work in flight, after which this incarnation counts as hung."""
    last_frame: float = math.inf
    """Event loop time of its last frame of any kind, of which one is due each second; infinite while none is due."""
    address: str = ""
    """Where a remote worker connected from; empty for one of this machine. Its `pid` is its own machine's."""
    last_failure: LastFailure | None = None
    """Stays when it serves again; None before the first."""


class WorkerUnavailable(Exception):
    """Raised by `send_nowait` when the worker does not take these commands now. None of them was sent."""


class WorkerListener(Protocol):
    """Who hears of a worker. All calls are made synchronously on the event loop, in order; none may raise."""

    def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
        """A `Step`, `Heartbeat`, `Finished` or `Failed` arrived."""

    def worker_changed(self, status: WorkerStatus) -> None:
        """The state or the loading progress changed."""

    def worker_lost(self, worker: str, incarnation: int, reason: str, origin: Origin) -> None:
        """An incarnation that had said `Hello` is gone: once, after its last event. Its live streams must be ended.
        `origin` says whether something in it or somebody else ended it."""


class Worker(Protocol):
    """A worker process somewhere."""

    @property
    def status(self) -> WorkerStatus: ...

    def send_nowait(self, commands: Sequence[Command]) -> None:
        """Send commands as one message. Raises `WorkerUnavailable`: it is not READY, or the link is full."""

    def pardon_nowait(self, incarnation: int) -> None:
        """The end of that incarnation, whose loss was told, was not the worker's fault: it does not count when it is
        decided how long to wait with the next one, and whether there is to be one."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a worker may take, in seconds."""

    hello: float = 60.0
    """From the start of the process to its `Hello`."""
    loading: float = 900.0
    """Between two signs of progress while it loads."""
    beat: float = 30.0
    """Between two frames of any kind after `Hello`."""
    idle: float = 10.0
    """The same of a worker without work, which beats each second: nothing of its own can keep it from that."""
    hang: float = 10.0
    """Without an advance of `gauges.steps` while work is in flight, at least: see `hang_factor`."""
    hang_factor: float = 8.0
    """As many times the longest step that the worker has shown, or has said to be possible, if that is longer."""
    hang_most: float = 900.0
    """No worker is given longer than this for a step, whatever it says; at least `hang`."""
    suspended: float = 0.5
    """Stopped by a signal, on a system that tells. Nobody but who stopped it can let it go on."""
    stop: float = 5.0
    """From `Stop` or `Bye` (or the end of a drain's grace) to its exit."""
    term: float = 2.0
    """From SIGTERM to SIGKILL."""
    shortage: float = 1.0
    """From a start for which the system had no room (`actors.process.shortage`) to the next, of one that was ready
    before."""

    def __post_init__(self) -> None:
        """Raises `ValueError` that names the field which is not above 0, or contradicts another one."""
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if self.hang_most < self.hang:
            raise ValueError(f"hang_most: {self.hang_most} is below hang, {self.hang}")

    def step(self, longest_s: float) -> float:
        """Seconds that a worker may go without finishing a step, when its longest legitimate one takes `longest_s`."""
        return min(max(self.hang, self.hang_factor * longest_s), self.hang_most)
