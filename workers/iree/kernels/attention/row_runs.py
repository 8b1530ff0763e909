"""Runs of rows of one slot in a decode step, as the rows of drafts are: they share each KV block that is read."""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.iree.kernels.attention.shape import Attention
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.value import Value


@dataclass(frozen=True, slots=True)
class RowRuns:
    """Finds the runs of a step's rows, by their slots (int32 [batch]) and rows of the cache (int32 [batch, tokens]).

    A run is of rows side by side of one slot, without padding rows, and ends before each multiple of
    `Attention.shared_rows`.
    """

    kind: Attention
    code: Code
    slots: Memory
    rows: Memory

    def length(self, sequence: Value, batch: Value) -> Value:
        """Return how many rows the run has that begins with a row, of `batch` rows; 0 if it began before."""
        if self.kind.shared_rows == 1:
            return self.code.index(1)

        def goes_on(values: list[Value]) -> tuple[Value, Sequence[Value]]:
            after = sequence + values[0]
            return self._joins(after.minimum(batch - 1)) & (after < batch), values

        (count,) = self.code.loop_while([self.code.index(1)], goes_on, lambda values: [values[0] + 1])
        return self._joins(sequence).select(0, count)

    def _joins(self, sequence: Value) -> Value:
        """Return whether a row is of the run of the row before it."""
        before = sequence.maximum(1) - 1
        same = self.slots.load_index([sequence]).equals(self.slots.load_index([before]))
        last = self.rows.load_index([sequence, 0]).maximum(self.rows.load_index([before, 0]))
        return same & (last < self.kind.shape.attended) & (sequence % self.kind.shared_rows >= 1)
