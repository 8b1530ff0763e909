"""The tiling of a product: blocks of rows and *groups* of weight tiles, whose sums stay in registers from end to end.

A tile is 16 outputs with all of their inputs.
"""

from dataclasses import dataclass

from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.ir.live_rows import ONE_HEIGHT_ROWS
from workers.iree.kernels.ir.mlir_types import LANES, size_of
from workers.iree.kernels.ir.partition import partition_count
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.row_blocks import ManyRowBlocks, RowBlocks


@dataclass(frozen=True, slots=True)
class GemmTiling:
    """The row blocks and tile groups of a product."""

    rows: int
    tiles: int
    """Tiles of outputs: a gated product has twice as many of weights."""
    inputs: int
    arithmetic: Arithmetic
    halves: int
    """Tiles of weights for one of outputs: 2 in a gated product."""
    live: bool
    """Only live rows are computed."""
    each: int | None = None
    """Tiles of a matrix with inputs of its own, of which there are several; a group has tiles of one. None is all."""

    @property
    def row_blocks(self) -> RowBlocks:
        """The blocks of live rows. The highest block has sums of two registers for each row, so that a row's number,
        once loaded, is multiplied twice: with one, a CPU that starts two loads and two products at a time waits for
        loads."""
        sums = self.arithmetic.accumulators
        return RowBlocks(self.rows, (2 * sums - 3) // 2 if sums >= LANES else sums + sums // 2)

    @property
    def few_live(self) -> bool:
        """True if the rows are divided as `row_blocks` says, otherwise as `many_row_blocks` does."""
        return self.live and self.rows <= ONE_HEIGHT_ROWS

    @property
    def many_row_blocks(self) -> ManyRowBlocks:
        """The blocks where all rows are computed, or the live ones of many. Of many rows half as many more share the
        work of widening the tiles, where there are registers for it."""
        usual = self.arithmetic.accumulators // 2
        return ManyRowBlocks(min(self.rows, usual + usual // 4 * 2 if self.rows > 2 * usual else usual))

    def _tiles_at_once(self, height: int) -> int:
        """Return the tiles of weights to sum at once: as many as there are registers for beside one of each tile's
        weights and one of a row's numbers.

        A few rows alone are a few chains of sums, each of which waits for itself; and tiles side by side share what is
        loaded of the rows, and are prefetched as streams of their own.
        """
        sums = self.arithmetic.accumulators
        counts = (4, 3, 2) if self.halves == 1 else (8, 4, 2)
        fitting = (n for n in counts if n * height <= max(sums, 2 * sums - n - 1) and n <= self.halves * self.tiles)
        return next((n for n in fitting if self.each is None or self.each % n == 0), 1)

    def sums_both_halves(self, height: int) -> bool:
        """Return whether both halves of a group are summed at once; otherwise the sums of one wait in memory."""
        return self._tiles_at_once(height) % self.halves == 0

    def group_tiles(self, height: int) -> int:
        """Return the tiles of outputs of a group, for blocks of this height."""
        return max(1, self._tiles_at_once(height) // self.halves)

    def groups(self, group_tiles: int) -> int:
        """Return how many groups there are. The last one begins sooner rather than reach further: a tile that is
        computed twice is the same twice."""
        return -(-self.tiles // group_tiles)

    def first_tile(self, group: Value, group_tiles: int) -> Value:
        """Return the first tile of a group."""
        return (group * group_tiles).minimum(self.tiles - group_tiles)

    def group_bytes(self, group_tiles: int) -> int:
        """Return the bytes of a group's weights."""
        return self.halves * group_tiles * self.inputs * LANES * size_of(self.arithmetic.element)

    def partitions(self, threads: int) -> int:
        """Return how many partitions the work has."""
        heights = self.row_blocks.heights if self.few_live else (self.many_row_blocks.height,)
        return partition_count(self.groups(max(map(self.group_tiles, heights))), threads)
