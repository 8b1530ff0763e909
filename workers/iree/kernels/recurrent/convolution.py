"""Causal convolutions of few taps, channel by channel."""

from dataclasses import dataclass

from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import fma
from workers.iree.kernels.ir.partition import partition_count
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.recurrent.state_rows import StateRows, StateShape
from workers.iree.kernels.rowwise.activations import silu


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of the rows of a step."""

    shape: StateShape
    arithmetic: Arithmetic
    channels: int
    taps: int
    width: int
    """Values of an input row."""
    gated: bool
    """LFM2's: rows are B, C and x, and the result is C * conv(B * x). Otherwise it is silu(conv(x)), where x are the
    first values of a row."""
    threads: int
    first: int = 0
    """The value of an input row at which the channels begin."""
    bias: bool = False
    """A bias is added, f32 [channels], an operand behind the taps."""


def convolution(name: str, kind: Convolution, *, live: bool = False) -> str:
    """x f32 [rows, width], taps f32 [taps, channels], the oldest row's first (, bias f32 [channels]), and the operands
    of `StateRows` -> packed words [rows, row_stride] if it is gated, otherwise f32 [rows, channels]; and the state, of
    which a layer has the last taps - 1 inputs, f32 [taps - 1, channels].

    Products are summed from the oldest row to the row itself, behind the bias if there is one. Channels are a multiple
    of 16.
    """
    shape, channels, arithmetic = kind.shape, kind.channels, kind.arithmetic
    blocks = channels // LANES
    kernel = Kernel(name, partition_count(blocks, kind.threads))
    code = kernel.code
    x = kernel.input("x", (shape.rows, kind.width), "f32")
    taps = kernel.input("taps", (kind.taps, channels), "f32")
    bias = kernel.input("bias", (channels,), "f32") if kind.bias else None
    states = StateRows(shape, kernel, live=live)
    result = (row_stride(channels, arithmetic), "i32") if kind.gated else (channels, "f32")
    out = kernel.output("out", (shape.rows, result[0]), result[1])

    low, high = kernel.partition.even_range(code.index(blocks))

    def row(at: Value, before: Value, after: Value) -> None:
        def block(number: Value) -> None:
            column = number * LANES
            inputs = [states.state.load_vector([before + column + tap * channels]) for tap in range(kind.taps - 1)]
            own = x.load_vector([at, column + kind.first])
            inputs.append(own * x.load_vector([at, column + 2 * channels]) if kind.gated else own)
            weights = [taps.load_vector([tap, column]) for tap in range(kind.taps)]
            total = inputs[0] * weights[0]
            if bias is not None:
                total = fma(inputs[0], weights[0], bias.load_vector([column]))
            for value, weight in zip(inputs[1:], weights[1:], strict=True):
                total = fma(value, weight, total)
            for tap, value in enumerate(inputs[1:]):
                states.state.store(value, [after + column + tap * channels])
            if kind.gated:
                gated = total * x.load_vector([at, column + channels])
                out.store(arithmetic.pack(gated), [at, column // arithmetic.per_word])
            else:
                out.store(silu(total), [at, column])

        code.repeat(low, high, block)

    states.write(code, row)
    return kernel.function()
