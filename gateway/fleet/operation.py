"""An operation on the workers of a running gateway, and its progress."""

from dataclasses import dataclass
from enum import StrEnum

MAX_LINES = 1000
"""Lines of one operation; each worker has two."""


class Busy(Exception):
    """The answer to an operation that cannot begin: another one is under way, or the gateway is about to end."""


class OperationFailed(Exception):
    """Raised by an operation that cannot continue; what it has done so far stays, but for the extra worker."""


class OperationOutcome(StrEnum):
    """The outcome of an operation."""

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
    """The steps done, oldest first; the last line of a failed operation is the reason."""
