"""Tracks which slots of a runner have a recurrent state, and how many rows can be taken back from it. Pure.

A runner of a model with recurrent state (`RunnerCapabilities.state_bytes`) has one of these, beside its count of rows.
For other models nothing is refused, and nothing needs to be recorded. Of rings of windows `LostRows` tracks this.
"""

from collections.abc import Sequence

from workers.engine.runner import Chunk, RunnerCapabilities


class SlotStates:
    """Owns, for each slot, whether it has a state after its rows, and how many of these can be taken back.

    A new slot has the initial state. The `check_...` methods raise `ValueError` and change nothing; the others record
    what the runner has done.
    """

    def __init__(self, capabilities: RunnerCapabilities) -> None:
        self._state_bytes = 0 if capabilities.window_rows else capabilities.state_bytes
        self._rollback_rows = capabilities.rollback_rows
        self._known = [True] * capabilities.slots
        self._undoable = [0] * capabilities.slots

    def known(self, slot: int) -> bool:
        """Return whether a slot has a state after all its rows."""
        return self._known[slot]

    def undoable(self, slot: int) -> int:
        """Return how many of the last rows of a slot can be taken back from its state."""
        return self._undoable[slot]

    def check_call(self, written: Sequence[int], chunks: Sequence[Chunk], *, decode: bool) -> None:
        """Raise `ValueError` for a call that would need a state that a slot does not have, or, in a `decode` step, for
        more rows of a slot than could be taken back.

        `written` has the number of rows of each slot. Decode rows count as chunks (`chunks_of`).
        """
        if not self._state_bytes:
            return
        most = max(1, self._rollback_rows)
        for chunk in chunks:
            slot, back = chunk.slot, written[chunk.slot] - chunk.start
            if not self._known[slot]:
                raise ValueError(f"slot: {slot} has rows without a recurrent state: write it first")
            if back > self._undoable[slot]:
                raise ValueError(f"start: {back} rows of slot {slot} to take back, {self._undoable[slot]} can be")
            if decode and len(chunk.tokens) > most:
                raise ValueError(f"rows: {len(chunk.tokens)} of slot {slot}, a step takes {most}")

    def check_read(self, slot: int, back: int = 0) -> None:
        """Raise `ValueError` for a slot that does not exist or has no state before its last `back` rows, and for a
        model without recurrent state."""
        self._check(slot)
        if not self._known[slot]:
            raise ValueError(f"slot: {slot} has rows without a recurrent state")
        if not 0 <= back <= self._undoable[slot]:
            raise ValueError(f"length: {back} rows of slot {slot} to take back, {self._undoable[slot]} can be")

    def check_write(self, slot: int, size: int) -> None:
        """Raise `ValueError` for a slot that does not exist, for a state of another size, and for a model without
        recurrent state."""
        self._check(slot)
        if size != self._state_bytes:
            raise ValueError(f"state: {size} bytes, a recurrent state has {self._state_bytes}")

    def _check(self, slot: int) -> None:
        if not self._state_bytes:
            raise ValueError("slot: the model has no recurrent state")
        if not 0 <= slot < len(self._known):
            raise ValueError(f"slot: {slot} is not one of {len(self._known)}")

    def prefilled(self, slot: int) -> None:
        """Record that a call other than a decode step wrote rows to a slot: none of them can be taken back."""
        self._known[slot], self._undoable[slot] = True, 0

    def decoded(self, slot: int, rows: int) -> None:
        """Record that a decode step wrote so many rows to a slot."""
        self._known[slot], self._undoable[slot] = True, min(rows, self._rollback_rows)

    def copied(self, source: int, target: int, length: int, written: int) -> int | None:
        """Record a copy of the first `length` of the `written` rows of `source` to `target`.

        Returns how many of these rows are taken back from the state that goes along: 0 for all rows. None if the state
        does not go along: `target` has the initial state after 0 rows, and otherwise none.
        """
        back = written - length
        goes_along = length > 0 and self._known[source] and back <= self._undoable[source]
        self._known[target] = goes_along or length == 0
        if not (source == target and back == 0):
            self._undoable[target] = 0
        return back if goes_along else None

    def rows_written(self, slot: int) -> None:
        """Record that rows were written to a slot as bytes: their state is not known."""
        self._known[slot], self._undoable[slot] = False, 0

    def state_written(self, slot: int) -> None:
        """Record that the state of a slot was written."""
        self._known[slot], self._undoable[slot] = True, 0

    def reset(self, slot: int) -> None:
        """Record that a slot was reset."""
        self._known[slot], self._undoable[slot] = True, 0
