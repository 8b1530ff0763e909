"""RMS norm, with the residual sum before it (https://arxiv.org/abs/1910.07467)."""

from dataclasses import dataclass

from workers.iree.kernels.ir.builder import FLOATS, LANES, Code, Value
from workers.iree.kernels.ir.executable import Kernel
from workers.iree.kernels.matmul.arithmetic import Arithmetic
from workers.iree.kernels.matmul.linear import stride

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
    multiplier: float = 1.0
    """Of what is added."""


@dataclass(frozen=True, slots=True)
class Normed:
    """The memory that norms read and write: `x`, `delta` and `total` f32 [rows, width], weights f32 [width], `out`
    words [rows, stride]."""

    x: Value
    delta: Value | None
    after: Value | None
    before: Value | None
    total: Value | None
    out: Value
    multiplier: float = 1.0
    """Of what is added."""

    def row(self, code: Code, row: str, eps: float, arithmetic: Arithmetic) -> None:
        """Write one row of `total` and `out`."""
        width, source = self.x.shape[-1], self.x
        if self.delta is not None and self.total is not None:
            self._add(code, self.delta, self.total, row, eps)
            source = self.total
        scale = None if self.before is None else code.spread(inverse_root_mean_square(code, source, [row], width, eps))

        def turn(column: str) -> None:
            value = code.read(source, [row, column])
            if self.before is not None:
                value = code.let(f"arith.mulf {value}, {scale} : {FLOATS}")
                value = code.let(f"arith.mulf {value}, {code.read(self.before, [column])} : {FLOATS}")
            words, word = arithmetic.words(code, value), arithmetic.word
            code.put(words, LANES // word, self.out, [row, code.div(column, word)])

        code.repeat(code.index(0), code.index(width), LANES, turn)

    def _add(self, code: Code, delta: Value, total: Value, row: str, eps: float) -> None:
        width, scale = self.x.shape[-1], None
        if self.after is not None:
            scale = code.spread(inverse_root_mean_square(code, delta, [row], width, eps))

        def turn(column: str) -> None:
            a, b = code.read(self.x, [row, column]), code.read(delta, [row, column])
            factor = None if self.multiplier == 1 else code.floats(self.multiplier)
            if self.after is not None:
                b = code.let(f"arith.mulf {b}, {scale} : {FLOATS}")
                if factor is not None:
                    b = code.let(f"arith.mulf {b}, {factor} : {FLOATS}")
                factor = code.read(self.after, [column])
            added = f"arith.addf {a}, {b}" if factor is None else f"vector.fma {b}, {factor}, {a}"
            code.put(code.let(f"{added} : {FLOATS}"), LANES, total, [row, column])

        code.repeat(code.index(0), code.index(width), LANES, turn)


def norm(name: str, rows: int, width: int, eps: float, arithmetic: Arithmetic, kind: Norm) -> str:
    """x f32 [rows, width] (, delta of the same shape) (, the weight f32 [width] of delta's norm) (, that of the sum's)
    -> (x + delta,) words [rows, stride].

    A norm is that of x / sqrt(mean(x^2) + eps) * weight; delta is multiplied by `kind.multiplier`. Width is a multiple
    of 16.
    """
    per = min(rows, ROWS)
    d = Kernel(name, -(-rows // per))
    code = d.code
    normed = Normed(
        d.take((rows, width), "f32"),
        d.take((rows, width), "f32") if kind.delta else None,
        d.take((width,), "f32") if kind.after else None,
        d.take((width,), "f32") if kind.before else None,
        d.give((rows, width), "f32") if kind.delta else None,
        d.give((rows, stride(width, arithmetic)), "i32"),
        kind.multiplier,
    )
    low = code.mul(d.workgroup(), per)
    high = code.least(code.add(low, per), code.index(rows))
    code.repeat(low, high, 1, lambda row: normed.row(code, row, eps, arithmetic))
    return d.function()


def inverse_root_mean_square(
    code: Code, x: Value, at: list[str], width: int, eps: float, lanes: int = LANES, first: str | None = None
) -> str:
    """1 / sqrt(mean(x^2) + eps) of `width` values from [*at, first] on, or from [*at, 0], `lanes` at a time."""
    kind = f"vector<{lanes}xf32>"

    def turn(column: str, sums: list[str]) -> list[str]:
        value = code.read(x, [*at, column if first is None else code.add(first, column)], lanes)
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
