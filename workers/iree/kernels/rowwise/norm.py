"""RMS norm (https://arxiv.org/abs/1910.07467) and LayerNorm (https://arxiv.org/abs/1607.06450), with the residual sum
before it. All sums have one order, so that a row is the same in every graph."""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import LANES, Type
from workers.iree.kernels.ir.operations import fma, sqrt
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.rowwise.row_workgroups import MANY_EACH, RowWorkgroups


@dataclass(frozen=True, slots=True)
class Norm:
    """The sum and the norms of the residual stream x between two blocks of a layer."""

    delta: bool
    """A delta is added to it."""
    after: bool
    """The delta is normed before it is added (a norm after the block)."""
    before: bool
    """The next block gets the norm of the sum (a norm before the block); otherwise the sum itself."""
    multiplier: float = 1.0
    """Factor of the delta, or of its norm."""
    values: int | None = None
    """Values of a row, which zeros follow; None is all of its width."""
    centred: bool = False
    """The norm of the sum is a LayerNorm."""
    bias: bool = False
    """It has a bias."""
    replaces: bool = False
    """The norm of the sum takes the place of the sum in the residual stream (a norm behind the residual sum)."""


@dataclass(frozen=True, slots=True)
class NormOperands:
    """The memory of norms: `x`, `delta` and `total` f32 [rows, width], weights f32 [width], `out` packed words
    [rows, row_stride]."""

    x: Memory
    delta: Memory | None
    after: Memory | None
    before: Memory | None
    total: Memory | None
    out: Memory
    multiplier: float = 1.0
    values: int | None = None
    """See `Norm`."""
    centred: bool = False
    bias: Memory | None = None
    """The bias of a LayerNorm, f32 [width]."""
    replaces: bool = False
    """See `Norm`."""

    def row(self, code: Code, row: Index, eps: float, arithmetic: Arithmetic) -> None:
        """Write one row of `total` and `out`."""
        width, source = self.x.shape[-1], self.x
        if self.delta is not None and self.total is not None:
            self._add(code, self.delta, self.total, row, eps)
            source = self.total
        scale = mean = None
        if self.before is not None and self.centred:
            mean = mean_of(code, source, [row], width, values=self.values).broadcast()
            scale = self._inverse_deviation(code, source, row, mean, eps).broadcast()
        elif self.before is not None:
            scale = inverse_root_mean_square(code, source, [row], width, eps, values=self.values).broadcast()

        def some(column: Value) -> None:
            value = source.load_vector([row, column])
            if self.before is not None and scale is not None:
                value = value if mean is None else value - mean
                value = value * scale * self.before.load_vector([column])
                value = value if self.bias is None else value + self.bias.load_vector([column])
            if self.replaces and self.total is not None:
                self.total.store(value, [row, column])
            self.out.store(arithmetic.pack(value), [row, column // arithmetic.per_word])

        code.repeat(0, width, some, LANES)

    def _inverse_deviation(self, code: Code, x: Memory, row: Index, mean: Value, eps: float) -> Value:
        """Return 1 / sqrt(variance + eps) of a row. The zeros behind its values are left out."""
        width = x.shape[-1]
        values = self.values or width
        whole = values // LANES * LANES

        def add(column: Value, sums: list[Value]) -> list[Value]:
            value = x.load_vector([row, column]) - mean
            return [fma(value, value, sums[0])]

        (squares,) = code.loop(0, whole, [code.floats(0.0)], add, LANES)
        if whole < values:
            value = x.load_vector([row, whole]) - mean
            value = (code.iota(whole) < values).select(value, 0.0)
            squares = fma(value, value, squares)
        return inverse_root(squares.sum_lanes(), values, eps)

    def _add(self, code: Code, delta: Memory, total: Memory, row: Index, eps: float) -> None:
        width, scale = self.x.shape[-1], None
        if self.after is not None:
            scale = inverse_root_mean_square(code, delta, [row], width, eps, values=self.values).broadcast()

        def some(column: Value) -> None:
            a, b = self.x.load_vector([row, column]), delta.load_vector([row, column])
            factor = None if self.multiplier == 1 else code.constant(self.multiplier, b.type)
            if self.after is not None and scale is not None:
                b = b * scale if factor is None else b * scale * factor
                factor = self.after.load_vector([column])
            total.store(a + b if factor is None else fma(b, factor, a), [row, column])

        code.repeat(0, width, some, LANES)


def norm(
    name: str, rows: int, width: int, eps: float, arithmetic: Arithmetic, kind: Norm, *, live: bool = False
) -> str:
    """x f32 [rows, width] (, delta of the same shape) (, the weight f32 [width] of delta's norm) (, that of the sum's)
    (, its bias f32 [width]) (, live i32 [1]) -> (x + delta,) packed words [rows, row_stride], of which the first `live`
    rows are computed.

    A norm is x / sqrt(mean(x^2) + eps) * weight; that of the sum may be a LayerNorm, of x - mean(x), plus bias. Delta,
    or its norm, is multiplied by `kind.multiplier`. If the norm replaces the sum, it is the first result,
    too. Width is a multiple of 16.
    """
    groups = RowWorkgroups(rows, min(rows, MANY_EACH))
    kernel = Kernel(name, groups.count)
    inputs = (
        kernel.input("x", (rows, width), "f32"),
        kernel.input("delta", (rows, width), "f32") if kind.delta else None,
        kernel.input("after", (width,), "f32") if kind.after else None,
        kernel.input("before", (width,), "f32") if kind.before else None,
    )
    bias = kernel.input("bias", (width,), "f32") if kind.bias else None
    number = kernel.input("live", (1,), "i32") if live else None
    normed = NormOperands(
        *inputs,
        kernel.output("sum", (rows, width), "f32") if kind.delta or kind.replaces else None,
        kernel.output("out", (rows, row_stride(width, arithmetic)), "i32"),
        kind.multiplier,
        kind.values,
        kind.centred,
        bias,
        kind.replaces,
    )
    groups.write(kernel, number, lambda row: normed.row(kernel.code, row, eps, arithmetic))
    return kernel.function()


def mean_of(
    code: Code,
    x: Memory,
    at: Sequence[Index],
    width: int,
    lanes: int = LANES,
    first: Value | None = None,
    values: int | None = None,
) -> Value:
    """Return the mean of `width` values from [*at, first] on, or from [*at, 0], `lanes` at a time; of so many `values`,
    if the others are zeros that pad them."""

    def add(column: Value, sums: list[Value]) -> list[Value]:
        return [sums[0] + x.load_vector([*at, column if first is None else first + column], lanes)]

    (total,) = code.loop(0, width, [code.constant(0.0, Type("f32", lanes))], add, lanes)
    return total.sum_lanes() / (values or width)


def inverse_root_mean_square(
    code: Code,
    x: Memory,
    at: Sequence[Index],
    width: int,
    eps: float,
    lanes: int = LANES,
    first: Value | None = None,
    values: int | None = None,
) -> Value:
    """Return 1 / sqrt(mean(x^2) + eps) of `width` values from [*at, first] on, or from [*at, 0], `lanes` at a time.

    The mean is of so many `values`, if the others are zeros that pad them.
    """

    def add(column: Value, sums: list[Value]) -> list[Value]:
        value = x.load_vector([*at, column if first is None else first + column], lanes)
        return [fma(value, value, sums[0])]

    (squares,) = code.loop(0, width, [code.constant(0.0, Type("f32", lanes))], add, lanes)
    return inverse_root(squares.sum_lanes(), values or width, eps)


def mean_and_inverse_deviation(
    code: Code, x: Memory, at: Sequence[Index], width: int, eps: float, lanes: int, first: Value, values: int
) -> tuple[Value, Value]:
    """Return the mean and 1 / sqrt(variance + eps) of a head's values, which are where `inverse_root_mean_square` has
    them. Each of the zeros between them adds the square of the mean to the sum, which is taken off."""
    mean = mean_of(code, x, at, width, lanes, first, values)
    centre = mean.broadcast(lanes)

    def add(column: Value, sums: list[Value]) -> list[Value]:
        value = x.load_vector([*at, first + column], lanes) - centre
        return [fma(value, value, sums[0])]

    (squares,) = code.loop(0, width, [code.constant(0.0, Type("f32", lanes))], add, lanes)
    total = squares.sum_lanes()
    if values < width:
        total = (total - mean * mean * float(width - values)).maximum(0.0)
    return mean, inverse_root(total, values, eps)


def inverse_root(squares: Value, count: int, eps: float) -> Value:
    """Return 1 / sqrt(squares / count + eps)."""
    return 1.0 / sqrt(squares / count + eps)
