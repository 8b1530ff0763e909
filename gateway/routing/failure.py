"""Failures: of a worker while it runs a sequence, and of a sequence that ends without an answer."""

from dataclasses import dataclass
from enum import StrEnum

from protocol.errors import ErrorCode

FailureId = tuple[int, int | None]
"""A failure of one worker: its incarnation, and the number of the failed step, or None for its death."""


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A death of a worker, or a failed step of it."""

    worker: str
    failure: FailureId
    within: bool = True
    """Something that the worker ran may have caused it. False when it was ended from outside."""
    of_worker: bool = True
    """It counts against the worker until it is attributed to a request. False when the worker found itself healthy."""


class Cause(StrEnum):
    """Why a sequence lost its worker and has to continue on another one."""

    DIED = "died"
    """The worker exited, hung or broke the protocol, which may be due to what it computed."""
    KILLED = "killed"
    """The worker was killed, suspended or disconnected from outside."""
    MISBEHAVED = "misbehaved"
    """The worker sent what it was not asked for."""
    LEFT = "left"
    """The worker leaves, and not because of what it computes: it was stopped, or its device fails."""
    MOVED = "moved"
    """The sequence was migrated; the worker lives on."""
    STEP = "step_failed"
    """An engine step failed that the sequence was part of."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a sequence ended without an answer; `field` is the request field at fault, if there is one.
    0 is an unknown `retry_after_s`."""

    code: ErrorCode
    text: str
    field: str = ""
    retry_after_s: int = 0
