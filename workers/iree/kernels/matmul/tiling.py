"""How a product is cut: into blocks of rows and *sets* of tiles, whose sums stay in registers from end to end."""

from dataclasses import dataclass

from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.ir.mlir_types import LANES, size_of
from workers.iree.kernels.ir.partition import workgroups
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.row_blocks import Heights


@dataclass(frozen=True, slots=True)
class Cut:
    """The blocks and sets of a product."""

    rows: int
    tiles: int
    """Of outputs: a gated product has twice as many of weights."""
    inputs: int
    arithmetic: Arithmetic
    halves: int
    """Tiles of weights for one of outputs."""
    live: bool

    @property
    def heights(self) -> Heights:
        """Of live rows. The tallest block has sums of two registers for each row, so that a row's number, once loaded,
        is multiplied twice: with one, a CPU that starts two loads and two products at a time waits for loads."""
        sums = self.arithmetic.accumulators
        return Heights(self.rows, (2 * sums - 3) // 2 if sums >= LANES else sums + sums // 2)

    @property
    def block(self) -> int:
        """Rows to sum at once where all are live. Of many rows half as many more share the work of widening the tiles,
        where there are registers for it."""
        usual = self.arithmetic.accumulators // 2
        return usual + usual // 4 * 2 if self.rows > 2 * usual else usual

    def _side_by_side(self, height: int) -> int:
        """Tiles of weights to sum at once, as many as there are registers for beside one of each tile's weights and
        one of a row's numbers. A few rows alone are a few chains of sums, each of which waits for itself; and tiles
        side by side share what is loaded of the rows, and are fetched ahead as streams of their own."""
        sums = self.arithmetic.accumulators
        counts = (4, 3, 2) if self.halves == 1 else (8, 4, 2)
        fitting = (n for n in counts if n * height <= max(sums, 2 * sums - n - 1) and n <= self.halves * self.tiles)
        return next(fitting, 1)

    def together(self, height: int) -> bool:
        """The halves of a set are summed at once; otherwise the sums of one wait in memory for the other."""
        return self._side_by_side(height) % self.halves == 0

    def span(self, height: int) -> int:
        """Tiles of outputs of a set."""
        return max(1, self._side_by_side(height) // self.halves)

    def sets(self, span: int) -> int:
        """The last one begins sooner rather than reach further: a tile that is computed twice is the same twice."""
        return -(-self.tiles // span)

    def first_tile(self, number: Value, span: int) -> Value:
        """Return the first tile of a set."""
        return (number * span).minimum(self.tiles - span)

    def size(self, span: int) -> int:
        """Bytes of a set's weights."""
        return self.halves * span * self.inputs * LANES * size_of(self.arithmetic.element)

    def shares(self, threads: int) -> int:
        """Into how many shares the work is cut."""
        heights = self.heights.all if self.live else (min(self.rows, self.block),)
        return workgroups(self.sets(max(map(self.span, heights))), threads)
