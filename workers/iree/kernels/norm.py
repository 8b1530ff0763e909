"""RMS norm, with the residual sum before it (https://arxiv.org/abs/1910.07467)."""

from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import FLOATS, LANES, Code, Dispatch, Value
from workers.iree.kernels.linear import stride

ROWS = 4
"""Rows of a workgroup."""


def norm(name: str, rows: int, width: int, eps: float, arithmetic: Arithmetic, *, residual: bool) -> str:
    """x f32 [rows, width] (, delta of the same shape), weight f32 [width] -> (x + delta,) words [rows, stride].

    The words are those of x / sqrt(mean(x^2) + eps) * weight. Width is a multiple of 16.
    """
    per = min(rows, ROWS)
    d = Dispatch(name, (-(-rows // per),))
    code = d.code
    x = d.take((rows, width), "f32")
    delta = d.take((rows, width), "f32") if residual else None
    weight = d.take((width,), "f32")
    total = d.give((rows, width), "f32") if residual else None
    out = d.give((rows, stride(width, arithmetic)), "i32")

    def one(row: str) -> None:
        source, at = x, row
        if delta is not None and total is not None:
            source, at = _add(code, x, delta, row, width), code.index(0)
            d.store(source, total, [row, "0"])
        scale = code.spread(inverse_root_mean_square(code, source, [at], width, eps))
        words = LANES // arithmetic.k

        def turn(column: str, part: Value) -> Value:
            value = code.let(f"arith.mulf {code.read(source, [at, column])}, {scale} : {FLOATS}")
            value = code.let(f"arith.mulf {value}, {code.read(weight, [column])} : {FLOATS}")
            where = [code.index(0), code.div(column, arithmetic.k)]
            return code.write(arithmetic.words(code, value), words, part, where)

        part = code.carry(code.index(0), code.index(width), LANES, code.empty((1, width // arithmetic.k), "i32"), turn)
        d.store(part, out, [row, "0"])

    low = code.mul(d.workgroup(), per)
    high = code.least(code.add(low, per), code.index(rows))
    code.repeat(low, high, 1, one)
    return d.function()


def _add(code: Code, x: Value, delta: Value, row: str, width: int) -> Value:
    def turn(column: str, part: Value) -> Value:
        a, b = code.read(x, [row, column]), code.read(delta, [row, column])
        return code.write(code.let(f"arith.addf {a}, {b} : {FLOATS}"), LANES, part, [code.index(0), column])

    return code.carry(code.index(0), code.index(width), LANES, code.empty((1, width), "f32"), turn)


def inverse_root_mean_square(code: Code, x: Value, at: list[str], width: int, eps: float, lanes: int = LANES) -> str:
    """1 / sqrt(mean(x^2) + eps) of `width` values from [*at, 0] on, `lanes` at a time."""
    kind = f"vector<{lanes}xf32>"

    def turn(column: str, sums: list[str]) -> list[str]:
        value = code.read(x, [*at, column], lanes)
        return [code.let(f"vector.fma {value}, {value}, {sums[0]} : {kind}")]

    zero = code.constant(f"dense<0.0> : {kind}")
    (squares,) = code.loop(code.index(0), code.index(width), lanes, [(zero, kind)], turn)
    mean = code.let(f"arith.divf {code.sum_lanes(squares, lanes)}, {code.constant(f'{width}.0 : f32')} : f32")
    shifted = code.let(f"arith.addf {mean}, {code.constant(f'{eps:.9e} : f32')} : f32")
    root = code.let(f"math.sqrt {shifted} : f32")
    return code.let(f"arith.divf {code.constant('1.0 : f32')}, {root} : f32")
