"""Gates and norms of the outputs of attention and of layers with a recurrent state."""

from workers.checkpoints.architectures.parts import GatedDelta
from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import exp
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.rowwise.activations import silu
from workers.iree.kernels.rowwise.norm import inverse_root_mean_square
from workers.iree.kernels.rowwise.row_workgroups import RowWorkgroups


def gated_norm(
    name: str, rows: int, sizes: GatedDelta, arithmetic: Arithmetic, eps: float, *, live: bool = False
) -> str:
    """x f32 [rows, values], projected f32 [rows, channels + values], of which the last values are gates, weight f32
    [value_dim] (, live i32 [1]) -> packed words [rows, row_stride] of the RMS norm of each head times its weight times
    silu(gate), of which the first `live` rows are computed."""
    groups = RowWorkgroups.of(rows)
    kernel, lanes = Kernel(name, groups.count), sizes.value_dim
    x = kernel.input("x", (rows, sizes.values), "f32")
    projected = kernel.input("projected", (rows, sizes.channels + sizes.values), "f32")
    weight = kernel.input("weight", (lanes,), "f32")
    number = kernel.input("live", (1,), "i32") if live else None
    out = kernel.output("out", (rows, row_stride(sizes.values, arithmetic)), "i32")

    def row(at: Value) -> None:
        def head(index: Value) -> None:
            first = index * lanes
            scale = inverse_root_mean_square(kernel.code, x, [at], lanes, eps, first=first).broadcast()
            for lane in range(0, lanes, LANES):
                value = x.load_vector([at, first + lane]) * scale * weight.load_vector([lane])
                gate = silu(projected.load_vector([at, first + (lane + sizes.channels)]))
                out.store(arithmetic.pack(value * gate), [at, (first + lane) // arithmetic.per_word])

        kernel.code.repeat(0, sizes.value_heads, head)

    groups.write(kernel, number, row)
    return kernel.function()


def group_norm(
    name: str, rows: int, width: int, count: int, arithmetic: Arithmetic, eps: float, *, live: bool = False
) -> str:
    """x f32 [rows, width], weight f32 [width] (, live i32 [1]) -> packed words [rows, row_stride] of the RMS norm of
    each of `count` equal groups of a row's values, times the weight, of which the first `live` rows are computed. The
    groups are multiples of 16."""
    groups, lanes = RowWorkgroups.of(rows), width // count
    kernel = Kernel(name, groups.count)
    x = kernel.input("x", (rows, width), "f32")
    weight = kernel.input("weight", (width,), "f32")
    number = kernel.input("live", (1,), "i32") if live else None
    out = kernel.output("out", (rows, row_stride(width, arithmetic)), "i32")

    def row(at: Value) -> None:
        def group(index: Value) -> None:
            first = index * lanes
            scale = inverse_root_mean_square(kernel.code, x, [at], lanes, eps, first=first).broadcast()

            def some(lane: Value) -> None:
                column = first + lane
                value = x.load_vector([at, column]) * scale * weight.load_vector([column])
                out.store(arithmetic.pack(value), [at, column // arithmetic.per_word])

            kernel.code.repeat(0, lanes, some, LANES)

        kernel.code.repeat(0, count, group)

    groups.write(kernel, number, row)
    return kernel.function()


def output_gate(name: str, rows: int, width: int, arithmetic: Arithmetic, *, live: bool = False) -> str:
    """x packed words [rows, row_stride], gate f32 [rows, width] (, live i32 [1]) -> packed words [rows, row_stride] of
    x * sigmoid(gate), of which the first `live` rows are computed."""
    groups = RowWorkgroups.of(rows)
    kernel, stride = Kernel(name, groups.count), row_stride(width, arithmetic)
    x = kernel.input("x", (rows, stride), "i32")
    gate = kernel.input("gate", (rows, width), "f32")
    number = kernel.input("live", (1,), "i32") if live else None
    out = kernel.output("out", (rows, stride), "i32")

    def row(at: Value) -> None:
        def some(column: Value) -> None:
            word = column // arithmetic.per_word
            value = arithmetic.unpack(x.load_vector([at, word], LANES // arithmetic.per_word))
            opened = value / (exp(-gate.load_vector([at, column])) + 1.0)
            out.store(arithmetic.pack(opened), [at, word])

        kernel.code.repeat(0, width, some, LANES)

    groups.write(kernel, number, row)
    return kernel.function()
