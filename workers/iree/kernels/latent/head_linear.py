"""The product of each head's columns and a matrix of its own."""

from dataclasses import dataclass

from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.linear import each_tile_group, gemm_tile
from workers.iree.kernels.matmul.prefetch import Prefetch
from workers.iree.kernels.matmul.tiling import GemmTiling


@dataclass(frozen=True, slots=True)
class HeadLinear:
    """The matrices of all heads, one below the other. Every output is the sum of its head's inputs in rising order,
    whatever the number of rows."""

    rows: int
    heads: int
    inputs: int
    outputs: int
    """Columns of a head's result, and `inputs` those that it is made of: multiples of 16."""
    arithmetic: Arithmetic
    packed: bool
    """Products are stored as packed words."""
    threads: int = 1

    @property
    def head_tiles(self) -> int:
        """Tiles of one head."""
        return self.outputs // LANES


def head_linear(name: str, kind: HeadLinear, *, live: bool = False) -> str:
    """Packed words [rows, row_stride] of width heads * inputs, a weight [heads * tiles, inputs / k, 16, k] (, live i32
    [1]) -> f32 [rows, heads * outputs], or packed words [rows, row_stride] of that width, of which the first `live`
    rows are computed."""
    arithmetic, heads, tiles = kind.arithmetic, kind.heads, kind.heads * kind.head_tiles
    tiling = GemmTiling(kind.rows, tiles, kind.inputs, arithmetic, 1, live, kind.head_tiles)
    kernel = Kernel(name, tiling.partitions(kind.threads))
    x = kernel.input("x", (kind.rows, row_stride(heads * kind.inputs, arithmetic)), "i32")
    w = kernel.input("weight", (tiles, kind.inputs * LANES), arithmetic.element)
    number = kernel.input("live", (1,), "i32") if live else None
    width = heads * kind.outputs
    shape = (kind.rows, row_stride(width, arithmetic) if kind.packed else width)
    out = kernel.output("out", shape, "i32" if kind.packed else "f32")
    head_words, per_tile = kind.inputs // arithmetic.per_word, LANES // arithmetic.per_word if kind.packed else LANES

    def write(at: Value, group_tiles: int, first: Value, count: int, prefetch: Prefetch) -> None:
        rows, group = [first + i for i in range(count)], [at + i for i in range(group_tiles)]
        word = at // kind.head_tiles * head_words
        sums = gemm_tile(kernel.code, x, rows, w, group, kind.inputs, arithmetic, prefetch, word)
        for row, totals in zip(rows, sums, strict=True):
            for i, total in enumerate(totals):
                out.store(arithmetic.pack(total) if kind.packed else total, [row, (at + i) * per_tile])

    each_tile_group(kernel.code, kernel.partition, tiling, number, w, write)
    return kernel.function()
