"""One worker of the fleet: how to reach it, and how it was launched."""

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
    """How its next incarnation is started."""
    checkpoint: str = ""
    """What it serves instead of what it was launched with; empty is that."""
    extra_grace_s: float | None = None
    """Of one that is there only for the time of an operation: how long it may take to finish what it has. It leaves
    as soon as another worker can take its place."""

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def remote(self) -> bool:
        """It runs on another machine."""
        return self.launch is None

    @property
    def status(self) -> WorkerStatus:
        return self.worker.status
