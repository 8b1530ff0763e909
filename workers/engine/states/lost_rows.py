"""Tracks the rows of slots that layers with an attention window do not keep any more. Pure.

Such layers keep the last rows of a slot alone (`RunnerCapabilities.window_rows`). What computes a row reads some of
those before it (`window_reach`), so that a slot can be continued where none of these are lost, or where a snapshot of
them (`RunnerCapabilities.state_bytes`) is written to it.
"""


class LostRows:
    """Owns the number of lost first rows of each slot. Nothing is ever lost if `kept` is 0."""

    def __init__(self, slots: int, kept: int, reach: int) -> None:
        """`kept` and `reach` as `RunnerCapabilities.window_rows` and `window_reach`."""
        self._kept = kept
        self._reach = reach
        self._lost = [0] * slots

    def usable(self, slot: int, rows: int, length: int) -> bool:
        """Return whether a slot that has so many `rows` can be continued behind its first `length` rows."""
        lost = self.lost(slot, rows)
        return lost == 0 or length - self._reach >= lost

    def lost(self, slot: int, rows: int) -> int:
        """Return how many first rows of a slot with so many `rows` are lost."""
        return max(self._lost[slot], rows - self._kept) if self._kept else 0

    def keeps(self, rows: int, length: int) -> bool:
        """Return whether a slot that was filled up to so many `rows`, and never further, can be continued behind its
        first `length` rows."""
        return not self._kept or rows <= self._kept or length - self._reach >= rows - self._kept

    def wrote(self, slot: int, rows: int) -> None:
        """Record that a slot has had so many rows."""
        if self._kept:
            self._lost[slot] = self.lost(slot, rows)

    def began(self, slot: int, source: int, rows: int, length: int) -> None:
        """Record that a slot has the first `length` rows of another one, or its own, which has so many `rows`. Where
        those that are lost are needed, it has none of them for windows, and is not continued until `restored`."""
        if self._kept:
            lost = self.lost(source, rows) if length else 0
            self._lost[slot] = lost if self.usable(source, rows, length) else length

    def rows_written(self, slot: int, rows: int) -> None:
        """Record that a slot was given all of its `rows`, but those of windows."""
        self._lost[slot] = rows if self._kept else 0

    def restored(self, slot: int, rows: int) -> None:
        """Record that a slot has the snapshot after its `rows`."""
        self._lost[slot] = max(0, rows - self._reach) if self._kept else 0
