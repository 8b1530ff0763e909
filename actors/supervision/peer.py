"""What a process of this machine and a worker of another one differ in, as the other end of a worker's link."""

from collections.abc import Callable
from typing import Protocol

from actors.join.request import JoinRequest
from actors.process.exit_cause import Origin
from actors.supervision.messages import Started, WorkerReport
from actors.transport.link import Link

Report = Callable[[WorkerReport], None]


class Peer(Protocol):
    """How incarnations start and end, who must be at the other end (else `Frames.fault`), and who is to blame for a
    hang. One at a time. It reports from callbacks of the event loop, never inside one of these calls; `Frames` it
    may."""

    def start(self, number: int, request: JoinRequest | None, report: Report) -> tuple[Link, Started]:
        """Start an incarnation; the caller owns the link. Raises `EndpointError`, `SpawnFailed` and `OSError`; nothing
        is left then."""

    def observe(self, silent_s: float, hang_s: float) -> tuple[bool, Origin]:
        """Whether its process is suspended, and who is to blame if it makes no progress now: it has sent nothing for
        `silent_s`, and hangs after `hang_s`."""

    def end(self, ask_s: float) -> None:
        """See that it ends: by itself within `ask_s` seconds, then by force. Reports `Ended` within a bounded time."""
