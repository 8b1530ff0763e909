"""The division of a graph's rows among the workgroups of kernels that compute each row by itself."""

from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import ONE_HEIGHT_ROWS, live_rows
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.value import Value

MANY_EACH = 4
"""Rows of a workgroup where there are many: handing a workgroup out costs as much as a part of a row."""


@dataclass(frozen=True, slots=True)
class RowWorkgroups:
    """Workgroups of `each` neighbouring rows."""

    rows: int
    each: int

    @classmethod
    def of(cls, rows: int) -> "RowWorkgroups":
        return cls(rows, MANY_EACH if rows > ONE_HEIGHT_ROWS else 1)

    @property
    def count(self) -> int:
        return -(-self.rows // self.each)

    def write(self, kernel: Kernel, live: Memory | None, row: Callable[[Value], None]) -> None:
        """Write `row` for each row of a workgroup, or for those that are live."""
        low = kernel.workgroup * self.each
        end = kernel.code.index(self.rows) if live is None else live_rows(live, self.rows)
        kernel.code.repeat(low, (low + self.each).minimum(end), row)
