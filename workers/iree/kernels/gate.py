"""The activation of a gated pair whose products come from elsewhere: those of few bits."""

from workers.architectures.parts import Activation
from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import FLOATS, LANES, Dispatch, Value
from workers.iree.kernels.linear import ACTIVATIONS, stride


def gate(name: str, rows: int, ffn: int, words: Arithmetic, activation: Activation) -> str:
    """act(gate) * up: f32 [rows, 2 * ffn], gates first -> words int32 [rows, stride]."""
    d = Dispatch(name, (rows,))
    code = d.code
    row = d.workgroup()
    x, out = d.take((rows, 2 * ffn), "f32"), d.give((rows, stride(ffn, words)), "i32")

    def turn(column: str, part: Value) -> Value:
        gates, up = code.read(x, [row, column]), code.read(x, [row, code.add(column, ffn)])
        product = code.let(f"arith.mulf {ACTIVATIONS[activation](code, gates)}, {up} : {FLOATS}")
        where = [code.index(0), code.div(column, words.word)]
        return code.write(words.words(code, product), LANES // words.word, part, where)

    empty = code.empty((1, ffn // words.word), "i32")
    d.store(code.carry(code.index(0), code.index(ffn), LANES, empty, turn), out, [row, "0"])
    return d.function()
