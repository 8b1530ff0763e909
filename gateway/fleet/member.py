"""A worker of the fleet: its handle and its launch."""

from dataclasses import dataclass

from actors.supervision.local import CommandLine
from actors.supervision.worker import WorkerStatus
from actors.supervision.worker_actor import WorkerRef
from gateway.fleet.launch import WorkerLaunch


@dataclass(frozen=True, slots=True)
class Member:
    """Replaced by the fleet, which owns it, when something about it changes."""

    worker: WorkerRef
    model: str
    launch: WorkerLaunch | None = None
    """None for a remote one: its machine launched it."""
    command: CommandLine | None = None
    """The command of its next incarnation."""
    checkpoint: str = ""
    """The checkpoint that it serves; empty: the one that it was launched with."""
    extra_grace_s: float | None = None
    """Set for an extra worker, which leaves as soon as another one can take its place: the grace of its drain."""

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def remote(self) -> bool:
        """True if it runs on another machine."""
        return self.launch is None

    @property
    def status(self) -> WorkerStatus:
        return self.worker.status
