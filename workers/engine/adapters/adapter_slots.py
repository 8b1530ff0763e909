"""Places of a runner for adapters that are loaded while it serves: docs/adr/0157."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

PutAdapter = Callable[[int], None]
"""Writes an adapter that was read to the place of a number, in place of the one that was there. For the runner's
thread, between two calls, while no row has that number."""


class AdapterSlots(Protocol):
    """Places for adapters, numbered after those that were loaded with the model."""

    def read(self, directory: Path) -> PutAdapter:
        """Read an adapter and check that it fits the model. For any thread. Raises `CheckpointError` that names the
        file and the field or tensor, and `OSError`."""


@runtime_checkable
class HoldsAdapters(Protocol):
    """A runner whose rows may have adapters that are loaded at run time."""

    @property
    def adapter_slots(self) -> AdapterSlots | None:
        """The places for them; None if it was loaded without any."""


def adapter_slots_of(runner: object) -> AdapterSlots | None:
    """Return the places of a runner; None for one without."""
    return runner.adapter_slots if isinstance(runner, HoldsAdapters) else None
