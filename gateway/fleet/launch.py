"""The launch of a worker, as the gateway's caller describes it."""

from collections.abc import Callable
from dataclasses import dataclass

from actors.supervision.local import CommandLine


class LaunchRefused(Exception):
    """Raised by `WorkerLaunch.like` for a checkpoint that cannot be served; the text says why."""


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """A worker to keep alive."""

    name: str
    model: str
    command: CommandLine
    standby: bool = False
    """Loaded and kept ready, to take the place of one that is lost."""
    like: Callable[[str, str], CommandLine] | None = None
    """`like(name, checkpoint)` is the command of a worker that is like this one but for its name and, unless it is
    empty, its checkpoint. It may read files, and raises `LaunchRefused`. None: there are no others like it."""
    on_demand: bool = False
    """Its model is loaded by the first request, and not at the start."""
