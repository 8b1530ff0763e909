"""One thing that an operator asked of a running gateway, and how it goes."""

from dataclasses import dataclass
from enum import StrEnum

MAX_LINES = 1000
"""Lines of one operation; each worker has two."""


class Busy(Exception):
    """The answer to an operation that cannot begin: another one is under way, or the gateway is about to end."""


class OperationFailed(Exception):
    """Raised by an operation that cannot continue; what it has done so far stays, but for the extra worker."""


class OperationOutcome(StrEnum):
    """How an operation stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation at one moment."""

    number: int
    name: str
    outcome: OperationOutcome = OperationOutcome.RUNNING
    lines: tuple[str, ...] = ()
    """What was done, oldest first; the last one of a failed operation is why."""
