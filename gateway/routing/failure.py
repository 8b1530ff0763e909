"""What can go wrong with a sequence: it loses its worker, it ends without an answer, it is charged with a failure."""

from dataclasses import dataclass
from enum import StrEnum

from protocol.errors import ErrorCode

FailureId = tuple[int, int | None]
"""A failure of one worker: its incarnation, and which of its failed steps it was; None is its death."""


@dataclass(frozen=True, slots=True)
class Charge:
    """A death of a worker, or a failed step of it."""

    worker: str
    failure: FailureId
    within: bool = True
    """What it ran may have done it. Otherwise somebody ended it from outside, and it accuses nobody."""
    of_worker: bool = True
    """It counts against the worker until it is put down to somebody. Otherwise the worker has seen that it is well."""


class Cause(StrEnum):
    """Why a sequence goes on without the worker that it was on."""

    DIED = "died"
    """The worker exited, hung or broke the protocol, which may be due to what it computed."""
    KILLED = "killed"
    """Somebody ended, suspended or cut off the worker from outside."""
    LEFT = "left"
    """The worker leaves, and not because of what it computes: it was stopped, or its device fails."""
    MOVED = "moved"
    """It was taken off a worker that goes on living."""
    STEP = "step_failed"
    """An engine step failed with it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a sequence ended without an answer; `field` is the request field at fault, when one is."""

    code: ErrorCode
    text: str
    field: str = ""
