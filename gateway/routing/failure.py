"""What a sequence can be charged with: it ran when a worker died, or when a step failed."""

from dataclasses import dataclass

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
