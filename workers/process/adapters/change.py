"""Changes of adapters on the engine thread."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterChange:
    """A change that is applied between two steps."""

    query: int
    """The gateway's number of the question."""
    apply: Callable[[], None]


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change that was applied."""

    query: int
    text: str = ""
    """Why it failed; empty if it did not."""
