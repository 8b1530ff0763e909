"""Linear layers with quantized weights: tile after tile, for as many rows at once as registers allow.

Many rows are multiplied by several tiles at once, so that a word of a row, once loaded, takes part in several dots."""

from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import ONE_HEIGHT_ROWS, live_rows
from workers.iree.kernels.ir.memory import L1, L2, Memory
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, LANES
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.quantized_matmul import QuantizedMatmul, QuantizedOperands
from workers.iree.kernels.matmul.quantized_tile import (
    Prefetches,
    prefetch_ahead,
    quantized_gemm_tile,
)
from workers.iree.kernels.matmul.row_blocks import ManyRowBlocks, RowBlocks

L2_ROWS = 64
"""Rows that are multiplied by a tile of weights before the next tile: their activations stay in L2."""
USUAL_BLOCKS = 2
"""Blocks of a short prompt, which prefetch the next tile between them: of many blocks each prefetches as much."""
SHARING_BLOCKS = 8
"""The same for blocks that are multiplied by several tiles at once, each of which has fewer rows."""


def quantized_linear(name: str, matmul: QuantizedMatmul, *, bias: bool = False, live: bool = False) -> str:
    """The result of `quantize_rows`, weights int8 [tiles, bytes] (, bias f32 [outputs]) (, live i32 [1])
    -> f32 [rows, outputs], of which the first `live` rows are computed.
    """
    kernel = Kernel(name, matmul.workgroups)
    operands = QuantizedOperands.of(matmul, kernel)
    offsets = kernel.input("bias", (matmul.outputs,), "f32") if bias else None
    number = kernel.input("live", (1,), "i32") if live else None
    out = kernel.output("out", (matmul.activations.rows, matmul.outputs), "f32")
    write_quantized_linear(kernel.code, kernel.partition, matmul, operands, out, offsets, number)
    return kernel.function()


def write_quantized_linear(
    code: Code,
    partition: Partition,
    matmul: QuantizedMatmul,
    operands: QuantizedOperands,
    out: Memory,
    bias: Memory | None = None,
    live: Memory | None = None,
) -> None:
    """Write a partition of `quantized_linear`."""
    rows, wide = matmul.activations.rows, live is not None and matmul.activations.rows > ONE_HEIGHT_ROWS
    groups = TileGroups(matmul.tiles, matmul.many_tiles if wide else 1)
    low, high = partition.tapered_range(groups.count)
    later = partition.tapered_start(groups.count, partition.next())
    work = _Work(code, matmul, operands, out, bias, groups, low, high, later)
    row_blocks = RowBlocks(rows, matmul.max_height)

    def live_blocks(height: int, end: Value, last: Value) -> None:
        count = (end + (height - 1)) // height
        work.all_tiles(_Blocks(height, row_blocks.min_blocks(height), -(-rows // height)), count, last)

    if live is not None and wide:
        work.live_tiles(ManyRowBlocks(matmul.many_height), live_rows(live, rows), rows)
        return
    if live is not None:
        row_blocks.choose(code, live, live_blocks)
        return
    count = -(-rows // matmul.max_height)
    height = -(-rows // count)
    work.all_tiles(_Blocks(height, count, count), code.index(count), code.index(rows - height))


@dataclass(frozen=True, slots=True)
class TileGroups:
    """Groups of neighbouring tiles that rows are multiplied by side by side."""

    tiles: int
    size: int

    @property
    def count(self) -> int:
        """The last group begins sooner rather than reach further: a tile that is computed twice is the same twice."""
        return -(-self.tiles // self.size)

    def of(self, group: Value) -> list[Value]:
        """Return the tiles of a group."""
        first = (group * self.size).minimum(self.tiles - self.size) if self.tiles % self.size else group * self.size
        return [first + tile for tile in range(self.size)]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of one height that rows are divided into; the last one overlaps the one before."""

    height: int
    least: int
    most: int

    @property
    def together(self) -> int:
        """Blocks that are multiplied by a tile before the next tile."""
        return max(1, min(self.most, L2_ROWS // self.height))

    @property
    def sharing(self) -> int:
        """Blocks that prefetch the next tile between them."""
        return min(self.least, self.together)


@dataclass(frozen=True, slots=True)
class _Work:
    """A partition of a product: its operands, the first of its tiles and their end, and the first tile of the partition
    that its thread most likely takes next."""

    code: Code
    matmul: QuantizedMatmul
    operands: QuantizedOperands
    out: Memory
    bias: Memory | None
    groups: TileGroups
    low: Value
    high: Value
    later: Value

    def all_tiles(self, blocks: _Blocks, count: Value, last: Value) -> None:
        """Multiply `count` blocks of rows, the last of which begins at row `last`: as many as go together by every
        tile, then the others."""
        code = self.code

        def some(first: Value) -> None:
            end = (first + blocks.together).minimum(count)

            def tile(at: Value) -> None:
                def block(number: Value) -> None:
                    row = (number * blocks.height).minimum(last)
                    self._block(blocks, row, at, lambda: number - first)

                code.repeat(first, end, block)

            code.repeat(self.low, self.high, tile)

        code.repeat(0, count, some, blocks.together)

    def live_tiles(self, live_blocks: ManyRowBlocks, live: Value, rows: int) -> None:
        """Multiply the live ones of `rows` rows: as many blocks as go together by every tile, the lower block with the
        last ones, then the others."""
        code, height = self.code, live_blocks.height
        sharing = SHARING_BLOCKS if self.groups.size > 1 else USUAL_BLOCKS
        blocks = _Blocks(height, sharing, -(-rows // height))
        count = live_blocks.count(live)

        def some(begin: Value) -> None:
            end = (begin + blocks.together).minimum(count)

            def tile(at: Value) -> None:
                def block(number: Value) -> None:
                    self._block(blocks, live_blocks.first(number, live), at, lambda: number - begin)

                def last(first: Value, height: int) -> None:
                    lower = _Blocks(height, blocks.least, blocks.most)
                    code.when(end >= count, lambda: self._block(lower, first, at, lambda: end - begin))

                code.repeat(begin, end, block)
                live_blocks.write_last(code, live, last)

            code.repeat(self.low, self.high, tile)

        code.repeat(0, count.maximum(1), some, blocks.together)

    def _block(self, blocks: _Blocks, first: Value, group: Value, turn: Callable[[], Value]) -> None:
        """Multiply the rows from `first` on by a group of tiles; `turn` is which of the blocks that go
        together this is."""
        rows, tiles = [first + row for row in range(blocks.height)], self.groups.of(group)
        following = group + 1
        following = (following < self.high).select(following, self.later)

        def soon(number: Value) -> Prefetches:
            return self._prefetches(blocks, turn(), tiles[0], self.groups.of(following)[0], number)

        sums = quantized_gemm_tile(self.code, self.matmul, self.operands, tiles, rows, soon)
        for row, totals in zip(rows, sums, strict=True):
            for tile, total in zip(tiles, totals, strict=True):
                column = tile * LANES
                if self.bias is not None:
                    total = total + self.bias.load_vector([column])
                self.out.store(total, [row, column])

    def _prefetches(self, blocks: _Blocks, turn: Value, tile: Value, following: Value, number: Value) -> Prefetches:
        """Prefetch a short way ahead for a single block of rows; several of them share the following tiles."""
        matmul = self.matmul
        if blocks.together == 1:
            return prefetch_ahead(matmul, self.operands, tile, following, number)
        # Several tiles that are in use fill L1.
        groups, cache = matmul.activations.groups, L2 if self.groups.size > 1 else L1
        lines = -(-matmul.tile_bytes * self.groups.size // (CACHE_LINE * groups * blocks.sharing))
        return Prefetches(self.operands, following, (turn * groups + number) * (lines * CACHE_LINE), lines, cache)
