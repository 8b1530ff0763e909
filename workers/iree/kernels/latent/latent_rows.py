"""The rows between the projections of latent attention and the KV cache, each computed by itself."""

from dataclasses import dataclass

from workers.checkpoints.architectures.parts import LatentAttention
from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.rowwise.norm import inverse_root_mean_square
from workers.iree.kernels.rowwise.row_workgroups import RowWorkgroups


@dataclass(frozen=True, slots=True)
class FirstColumns:
    """The first columns of rows, as the left operand of a product."""

    rows: int
    width: int
    """Columns of a row."""
    columns: int
    """Those that are taken: a multiple of 16, like `width`."""
    arithmetic: Arithmetic
    eps: float | None = None
    """Epsilon of their RMS norm; None is no norm."""


def first_columns(name: str, kind: FirstColumns, *, live: bool = False) -> str:
    """x f32 [rows, width] (, the norm's weight f32 [columns]) (, live i32 [1]) -> packed words [rows, row_stride] of
    the first columns, or of their norm, of which the first `live` rows are computed."""
    groups = RowWorkgroups.of(kind.rows)
    kernel = Kernel(name, groups.count)
    x = kernel.input("x", (kind.rows, kind.width), "f32")
    weight = None if kind.eps is None else kernel.input("weight", (kind.columns,), "f32")
    number = kernel.input("live", (1,), "i32") if live else None
    out = kernel.output("out", (kind.rows, row_stride(kind.columns, kind.arithmetic)), "i32")

    def row(at: Value) -> None:
        scale = None
        if kind.eps is not None:
            scale = inverse_root_mean_square(kernel.code, x, [at], kind.columns, kind.eps).broadcast()

        def some(column: Value) -> None:
            value = x.load_vector([at, column])
            if scale is not None and weight is not None:
                value = value * scale * weight.load_vector([column])
            out.store(kind.arithmetic.pack(value), [at, column // kind.arithmetic.per_word])

        kernel.code.repeat(0, kind.columns, some, LANES)

    groups.write(kernel, number, row)
    return kernel.function()


@dataclass(frozen=True, slots=True)
class LatentRows:
    """Queries, keys and values of rows, as they are rotated and attended to."""

    rows: int
    heads: int
    sizes: LatentAttention
    queries: int
    """Columns of the rows that have the queries: the lanes without positions of all heads, those with them, and what
    else is projected with them."""
    projected: int
    """Columns of the rows whose last ones are the latent and the key's lanes with the position."""

    @property
    def width(self) -> int:
        """Columns of a result: the queries of all heads, the key and the value."""
        return (self.heads + 1) * self.sizes.keys + self.sizes.rank


def latent_rows(name: str, kind: LatentRows, *, live: bool = False) -> str:
    """queries f32 [rows, queries], projected f32 [rows, projected], those of the queries' lanes without positions that
    are multiplied f32 [rows, heads * rank], the weight of the latent's norm f32 [rank] (, live i32 [1]) -> f32
    [rows, width], of which the first `live` rows are computed. Queries and keys have the lanes with positions first,
    which are not rotated yet."""
    groups, sizes = RowWorkgroups.of(kind.rows), kind.sizes
    kernel = Kernel(name, groups.count)
    queries = kernel.input("queries", (kind.rows, kind.queries), "f32")
    projected = kernel.input("projected", (kind.rows, kind.projected), "f32")
    multiplied = kernel.input("multiplied", (kind.rows, kind.heads * sizes.rank), "f32")
    weight = kernel.input("weight", (sizes.rank,), "f32")
    number = kernel.input("live", (1,), "i32") if live else None
    out = kernel.output("out", (kind.rows, kind.width), "f32")
    rotated, latent = kind.heads * sizes.passed, kind.projected - sizes.rank - sizes.rotated

    def copy(source: Memory, row: Value, first: Value, target: Value, columns: int) -> None:
        def some(column: Value) -> None:
            out.store(source.load_vector([row, first + column]), [row, target + column])

        kernel.code.repeat(0, columns, some, LANES)

    def row(at: Value) -> None:
        code = kernel.code

        def head(index: Value) -> None:
            target = index * sizes.keys
            copy(queries, at, index * sizes.rotated + rotated, target, sizes.rotated)
            copy(multiplied, at, index * sizes.rank, target + sizes.rotated, sizes.rank)

        code.repeat(0, kind.heads, head)
        key = code.index(kind.heads * sizes.keys)
        copy(projected, at, code.index(latent + sizes.rank), key, sizes.rotated)
        start = code.index(latent)
        scale = inverse_root_mean_square(code, projected, [at], sizes.rank, sizes.eps, first=start).broadcast()

        def normed(column: Value) -> None:
            value = projected.load_vector([at, start + column]) * scale * weight.load_vector([column])
            for target in (key + sizes.rotated, key + sizes.keys):
                out.store(value, [at, target + column])

        code.repeat(0, sizes.rank, normed, LANES)

    groups.write(kernel, number, row)
    return kernel.function()
