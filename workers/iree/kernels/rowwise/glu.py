"""The activation of an MLP whose products are computed elsewhere: those with quantized weights, or with biases."""

from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.rowwise.activations import ACTIVATIONS, gated_unit
from workers.iree.kernels.rowwise.row_workgroups import RowWorkgroups


@dataclass(frozen=True, slots=True)
class Glu:
    """The memory of a GLU: `x` f32 [rows, 2 * ffn], gates first, `out` packed words [rows, row_stride]. Without gates,
    `x` is f32 [rows, ffn]."""

    x: Memory
    out: Memory
    arithmetic: Arithmetic
    activation: Activation
    gated: bool = True

    def columns(self, code: Code, row: Index, low: Index, high: Index) -> None:
        """Write a row's columns from `low` to `high`, multiples of 16: act(gate) * up, or act(x)."""
        ffn, per_word = self.x.shape[-1] // 2, self.arithmetic.per_word

        def some(column: Value) -> None:
            gates = self.x.load_vector([row, column])
            if self.gated:
                ups = self.x.load_vector([row, column + ffn])
                product = gated_unit(self.activation, gates, ups)
            else:
                product = ACTIVATIONS[self.activation](gates)
            self.out.store(self.arithmetic.pack(product), [row, column // per_word])

        code.repeat(low, high, some, LANES)


def glu(
    name: str,
    rows: int,
    ffn: int,
    arithmetic: Arithmetic,
    activation: Activation,
    *,
    gated: bool = True,
    live: bool = False,
) -> str:
    """f32 [rows, 2 * ffn], gates first, or [rows, ffn] without gates (, live i32 [1]) -> packed words
    [rows, row_stride], of which the first `live` rows are computed."""
    groups = RowWorkgroups.of(rows)
    kernel = Kernel(name, groups.count)
    x = kernel.input("x", (rows, 2 * ffn if gated else ffn), "f32")
    number = kernel.input("live", (1,), "i32") if live else None
    out = kernel.output("out", (rows, row_stride(ffn, arithmetic)), "i32")
    unit = Glu(x, out, arithmetic, activation, gated)
    groups.write(kernel, number, lambda row: unit.columns(kernel.code, row, 0, ffn))
    return kernel.function()
