"""The activation of a gated pair whose products come from elsewhere: those of few bits."""

from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, stride
from workers.iree.kernels.ir.builder import FLOATS, LANES, Code, Value
from workers.iree.kernels.ir.executable import Kernel
from workers.iree.kernels.rowwise.activations import ACTIVATIONS


@dataclass(frozen=True, slots=True)
class Gate:
    """The memory that is read and written: `x` f32 [rows, 2 * ffn], gates first, `out` words [rows, stride]."""

    x: Value
    out: Value
    arithmetic: Arithmetic
    activation: Activation

    def columns(self, code: Code, row: str, low: str, high: str) -> None:
        """Write a row's columns from `low` to `high`, multiples of 16: act(gate) * up."""
        ffn, word = self.x.shape[-1] // 2, self.arithmetic.word

        def turn(column: str) -> None:
            gates, up = code.read(self.x, [row, column]), code.read(self.x, [row, code.add(column, ffn)])
            product = code.let(f"arith.mulf {ACTIVATIONS[self.activation](code, gates)}, {up} : {FLOATS}")
            code.put(self.arithmetic.words(code, product), LANES // word, self.out, [row, code.div(column, word)])

        code.repeat(low, high, LANES, turn)


def gate(name: str, rows: int, ffn: int, arithmetic: Arithmetic, activation: Activation) -> str:
    """f32 [rows, 2 * ffn], gates first -> words [rows, stride]."""
    d = Kernel(name, rows)
    x, out = d.take((rows, 2 * ffn), "f32"), d.give((rows, stride(ffn, arithmetic)), "i32")
    code = d.code
    Gate(x, out, arithmetic, activation).columns(code, d.workgroup(), code.index(0), code.index(ffn))
    return d.function()
