"""Linear layers with quantized weights: tile after tile, for as many rows at once as registers allow."""

from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, LANES
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.quantized_product import Factors, Product
from workers.iree.kernels.matmul.quantized_tile import Fetches, fetch, fetch_straight, tile_sums
from workers.iree.kernels.matmul.row_blocks import RowBlocks

L2_ROWS = 64
"""Rows that are multiplied by a tile of weights before the next tile: their activations stay in L2."""


def product(name: str, p: Product, *, bias: bool = False, live: bool = False) -> str:
    """What `round_rows` gives, weights int8 [tiles, bytes] (, bias f32 [outputs]) (, live i32 [1])
    -> f32 [rows, outputs], of which the first `live` rows are computed.
    """
    d = Kernel(name, p.workgroups)
    factors = Factors.taken(p, d)
    offsets = d.take((p.outputs,), "f32") if bias else None
    number = d.take((1,), "i32") if live else None
    out = d.give((p.rounded.rows, p.outputs), "f32")
    add_product(d.code, d.partition, p, factors, out, offsets, number)
    return d.function()


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of one height that rows are divided into; the last one begins sooner rather than reach further."""

    height: int
    least: int
    most: int

    @property
    def together(self) -> int:
        """Blocks that are multiplied by a tile before the next tile."""
        return max(1, min(self.most, L2_ROWS // self.height))

    @property
    def sharing(self) -> int:
        """Blocks that fetch the next tile between them."""
        return min(self.least, self.together)


def add_product(
    code: Code,
    partition: Partition,
    p: Product,
    factors: Factors,
    out: Memory,
    bias: Memory | None = None,
    live: Memory | None = None,
) -> None:
    """Write a partition of `product`."""
    low, high = partition.tapered_range(p.tiles)
    rows, work = p.rounded.rows, _Work(code, p, factors, out, bias, low, high)
    row_blocks = RowBlocks(rows, p.max_height)

    def of_height(height: int, end: Value, last: Value) -> None:
        count = (end + (height - 1)) // height
        work.all_tiles(_Blocks(height, row_blocks.min_blocks(height), -(-rows // height)), count, last)

    if live is not None:
        row_blocks.choose(code, live, of_height)
        return
    count = -(-rows // p.max_height)
    height = -(-rows // count)
    work.all_tiles(_Blocks(height, count, count), code.index(count), code.index(rows - height))


@dataclass(frozen=True, slots=True)
class _Work:
    """A partition of a product: its operands, and the first of its tiles and their end."""

    code: Code
    p: Product
    factors: Factors
    out: Memory
    bias: Memory | None
    low: Value
    high: Value

    def all_tiles(self, b: _Blocks, count: Value, last: Value) -> None:
        """Multiply so many blocks, the last of which begins at a certain row: as many as are multiplied by a tile
        together by every tile, then the others."""
        code = self.code

        def some(first: Value) -> None:
            end = (first + b.together).minimum(count)

            def tile(at: Value) -> None:
                def block(number: Value) -> None:
                    row = (number * b.height).minimum(last)
                    self._block(b, row, at, lambda: number - first)

                code.repeat(first, end, block)

            code.repeat(self.low, self.high, tile)

        code.repeat(0, count, some, b.together)

    def _block(self, b: _Blocks, first: Value, at: Value, turn: Callable[[], Value]) -> None:
        """Multiply the rows from `first` on by the tile `at`; `turn` is which of the blocks that it is read for."""
        rows = [first + row for row in range(b.height)]
        column = at * LANES

        def soon(group: Value, byte: Value) -> Fetches:
            return self._fetches(b, turn(), at, group, byte)

        for row, total in zip(rows, tile_sums(self.code, self.p, self.factors, at, rows, soon), strict=True):
            if self.bias is not None:
                total = total + self.bias.load_vector([column])
            self.out.store(total, [row, column])

    def _fetches(self, b: _Blocks, turn: Value, at: Value, group: Value, byte: Value) -> Fetches:
        """A single block of rows reads on in memory, several of them share the next tile."""
        p = self.p
        if b.together == 1:
            return fetch_straight(p, self.factors, at, byte)
        lines = -(-p.vectors // b.sharing)
        groups_before = turn * p.rounded.groups + group
        return fetch(self.factors, at + 1, groups_before * (lines * CACHE_LINE), lines)
