"""RMS norm, with the residual sum before it (https://arxiv.org/abs/1910.07467)."""

from dataclasses import dataclass

from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import FLOATS, LANES, Code, Dispatch, Value
from workers.iree.kernels.linear import stride

ROWS = 4
"""Rows of a workgroup."""


@dataclass(frozen=True, slots=True)
class Norm:
    """What happens to the residual stream x between two blocks of a layer."""

    delta: bool
    """Something is added to it,"""
    after: bool
    """which is normed before,"""
    before: bool
    """and the next block sees its norm; otherwise x itself."""


def norm(name: str, rows: int, width: int, eps: float, arithmetic: Arithmetic, kind: Norm) -> str:
    """x f32 [rows, width] (, delta of the same shape) (, the weight f32 [width] of delta's norm) (, that of the sum's)
    -> (x + delta,) words [rows, stride].

    A norm is that of x / sqrt(mean(x^2) + eps) * weight. Width is a multiple of 16.
    """
    per = min(rows, ROWS)
    d = Dispatch(name, (-(-rows // per),))
    code = d.code
    x = d.take((rows, width), "f32")
    delta = d.take((rows, width), "f32") if kind.delta else None
    after = d.take((width,), "f32") if kind.after else None
    before = d.take((width,), "f32") if kind.before else None
    total = d.give((rows, width), "f32") if kind.delta else None
    out = d.give((rows, stride(width, arithmetic)), "i32")

    def one(row: str) -> None:
        source, at = x, row
        if delta is not None and total is not None:
            source, at = _add(code, x, delta, after, row, width, eps), code.index(0)
            d.store(source, total, [row, "0"])
        scale = None if before is None else code.spread(inverse_root_mean_square(code, source, [at], width, eps))
        words = LANES // arithmetic.word

        def turn(column: str, part: Value) -> Value:
            value = code.read(source, [at, column])
            if before is not None:
                value = code.let(f"arith.mulf {value}, {scale} : {FLOATS}")
                value = code.let(f"arith.mulf {value}, {code.read(before, [column])} : {FLOATS}")
            where = [code.index(0), code.div(column, arithmetic.word)]
            return code.write(arithmetic.words(code, value), words, part, where)

        part = code.carry(
            code.index(0), code.index(width), LANES, code.empty((1, width // arithmetic.word), "i32"), turn
        )
        d.store(part, out, [row, "0"])

    low = code.mul(d.workgroup(), per)
    high = code.least(code.add(low, per), code.index(rows))
    code.repeat(low, high, 1, one)
    return d.function()


def _add(code: Code, x: Value, delta: Value, after: Value | None, row: str, width: int, eps: float) -> Value:
    scale = None if after is None else code.spread(inverse_root_mean_square(code, delta, [row], width, eps))

    def turn(column: str, part: Value) -> Value:
        a, b = code.read(x, [row, column]), code.read(delta, [row, column])
        if after is None:
            total = code.let(f"arith.addf {a}, {b} : {FLOATS}")
        else:
            normed = code.let(f"arith.mulf {b}, {scale} : {FLOATS}")
            total = code.let(f"vector.fma {normed}, {code.read(after, [column])}, {a} : {FLOATS}")
        return code.write(total, LANES, part, [code.index(0), column])

    return code.carry(code.index(0), code.index(width), LANES, code.empty((1, width), "f32"), turn)


def inverse_root_mean_square(code: Code, x: Value, at: list[str], width: int, eps: float, lanes: int = LANES) -> str:
    """1 / sqrt(mean(x^2) + eps) of `width` values from [*at, 0] on, `lanes` at a time."""
    kind = f"vector<{lanes}xf32>"

    def turn(column: str, sums: list[str]) -> list[str]:
        value = code.read(x, [*at, column], lanes)
        return [code.let(f"vector.fma {value}, {value}, {sums[0]} : {kind}")]

    zero = code.constant(f"dense<0.0> : {kind}")
    (squares,) = code.loop(code.index(0), code.index(width), lanes, [(zero, kind)], turn)
    return inverse_root(code, code.sum_lanes(squares, lanes), width, eps)


def inverse_root(code: Code, squares: str, count: int, eps: float) -> str:
    """1 / sqrt(squares / count + eps)."""
    mean = code.let(f"arith.divf {squares}, {code.constant(f'{count}.0 : f32')} : f32")
    shifted = code.let(f"arith.addf {mean}, {code.constant(f'{eps:.9e} : f32')} : f32")
    root = code.let(f"math.sqrt {shifted} : f32")
    return code.let(f"arith.divf {code.constant('1.0 : f32')}, {root} : f32")
