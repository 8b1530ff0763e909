"""The last rows of layers with an attention window, as states that are read from and written to slots."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from workers.engine.states.lost_rows import LostRows


class WindowRows(Protocol):
    """The rings of all slots, as a runner has them."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements on the host."""

    def window_bytes(self, rows: int) -> int:
        """Return the bytes of so many rows of the rings of a slot."""

    def read_windows(self, slot: int, start: int, end: int) -> NDArray[Any]:
        """Return a copy of rows `start .. end` of the rings of a slot, in one dimension."""

    def write_windows(self, slot: int, start: int, end: int, rows: NDArray[Any]) -> None:
        """Write what `read_windows` has returned for these rows."""


class WindowStates:
    """Owns which rows of each slot its rings have. A state is the rows that the next one reads in them: `reach`, of a
    shorter sequence all, with zeros behind them."""

    def __init__(self, kv: WindowRows, slots: int, kept: int, reach: int) -> None:
        """`kept` is the number of last rows that a ring has for sure, and `reach` that of rows before a row that the
        layers read."""
        self._kv = kv
        self._slots = slots
        self._reach = reach
        self._lost = LostRows(slots, kept, reach)
        self.state_bytes = kv.window_bytes(reach)
        """Bytes of one state."""

    def check(self, slot: int, rows: int, length: int) -> None:
        """Raise `ValueError` if a slot with so many `rows` cannot be continued behind the first `length` of them."""
        if length and not self._lost.usable(slot, rows, length):
            lost = self._lost.lost(slot, rows)
            raise ValueError(f"start: {length} rows of slot {slot}, whose first {lost} are lost to windows")

    def wrote(self, slot: int, rows: int) -> None:
        """Record that a call writes the rows of a slot up to so many."""
        self._lost.wrote(slot, rows)

    def rows_written(self, slot: int, rows: int) -> None:
        """Record that the `rows` of a slot were written as bytes, without those of rings."""
        self._lost.rows_written(slot, rows)

    def copied(self, source: int, target: int, rows: int, length: int) -> bool:
        """Record a copy of the first `length` of the `rows` of `source` to `target`. Returns whether the rows of rings
        go along: otherwise `target` is not continued until a state is written to it."""
        goes_along = length > 0 and self._lost.usable(source, rows, length)
        self._lost.began(target, source, rows, length)
        return goes_along

    def reset(self, slot: int) -> None:
        """Record that a slot has no rows."""
        self._lost.began(slot, slot, 0, 0)

    def read(self, slot: int, written: Sequence[int], length: int | None) -> bytes:
        """Return the state after `length` rows of a slot, or after all. `written` has the number of rows of each slot.

        Raises `ValueError` for a slot that does not exist, or that cannot be continued there.
        """
        self._check_slot(slot)
        end = written[slot] if length is None else length
        if not 0 <= end <= written[slot]:
            raise ValueError(f"length: {end} rows of slot {slot}, which has {written[slot]}")
        self.check(slot, written[slot], end)
        rows = self._kv.read_windows(slot, max(0, end - self._reach), end)
        return rows.tobytes().ljust(self.state_bytes, b"\0")

    def write(self, slot: int, written: Sequence[int], state: bytes | memoryview) -> None:
        """Write what `read` has returned for as many rows as a slot has. Raises `ValueError` for a slot that does not
        exist, or a state of another size."""
        self._check_slot(slot)
        if len(state) != self.state_bytes:
            raise ValueError(f"state: {len(state)} bytes, one of windows has {self.state_bytes}")
        end = written[slot]
        start = max(0, end - self._reach)
        rows = np.frombuffer(state, np.uint8)[: self._kv.window_bytes(end - start)]
        self._kv.write_windows(slot, start, end, rows.view(self._kv.dtype))
        self._lost.restored(slot, end)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self._slots:
            raise ValueError(f"slot: {slot} is not one of {self._slots}")
