"""The interface of a worker's link peer: a process of this machine, or a worker of another one."""

from collections.abc import Callable
from typing import Protocol

from actors.join.request import JoinRequest
from actors.process.exit_cause import Origin
from actors.supervision.messages import Started, WorkerReport
from actors.transport.link import Link

Report = Callable[[WorkerReport], None]


class Peer(Protocol):
    """Starts and ends one incarnation at a time. It reports from callbacks of the event loop; only `Frames` also inside
    these calls."""

    def start(self, number: int, request: JoinRequest | None, report: Report) -> tuple[Link, Started]:
        """Start an incarnation; the caller owns the link. Raises `EndpointError`, `SpawnFailed` and `OSError`."""

    def observe(self, silent_s: float, hang_s: float) -> tuple[bool, Origin]:
        """Return whether its process is suspended, and the origin of a hang, if there is one. It has sent nothing for
        `silent_s` seconds; no progress for `hang_s` is a hang."""

    def end(self, ask_s: float) -> None:
        """Let it end within `ask_s` seconds, then kill it. Reports `Ended` within a bounded time."""

    def kill(self) -> bool:
        """Send SIGKILL to its process. False if it has none on this machine."""
