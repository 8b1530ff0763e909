"""Products with a packed weight: plain, with a bias, and the gated pair of an MLP."""

import math
from collections.abc import Callable, Mapping

from workers.architectures.parts import Activation
from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import FLOATS, LANES, Code, Value
from workers.iree.kernels.executable import Kernel

PADDING = LANES
"""Words after each row of a left operand: rows a power of two apart would fall into the same lines of the cache."""
LINE = 64
"""Bytes of a line of the cache."""
AHEAD = 3072
"""Bytes of each tile that are on their way while it is summed. The CPU itself looks ahead no further than a page's end,
and what it fetches alone does not come in time where several rows keep its arithmetic busy."""
GROUP_BYTES = 256 << 10
"""Weights that all rows pass by before the next are read: what the second cache holds."""
SHARES = 7
"""Workgroups for each thread. A thread takes one at a time where there are fewer than eight for each, otherwise eight
(IREE's `IREE_TASK_DISPATCH_MAX_TILES_PER_SHARD_RESERVATION`): of 28 workgroups, one of two threads would do 16."""


def stride(inputs: int, arithmetic: Arithmetic) -> int:
    """Words between rows of a left operand."""
    return inputs // arithmetic.word + PADDING


def linear(
    name: str, rows: int, tiles: int, inputs: int, arithmetic: Arithmetic, *, bias: bool, threads: int = 1
) -> str:
    """words [rows, stride], a weight [tiles, inputs / k, 16, k] (, bias f32 [tiles * 16]) -> f32 [rows, tiles * 16]."""
    block = _block(rows, arithmetic)
    span = _span(min(rows, block), tiles, max(arithmetic.sums, 2 * block))
    size = span * inputs * LANES * element_bytes(arithmetic)
    d = Kernel(name, workgroups(tiles // span, threads))
    code = d.code
    x = d.take((rows, stride(inputs, arithmetic)), "i32")
    w = d.take((tiles, inputs * LANES), arithmetic.element)
    offsets = d.take((tiles * LANES,), "f32") if bias else None
    out = d.give((rows, tiles * LANES), "f32")

    def tile(at: str, first: str, count: int) -> None:
        sums = sums_of(
            code,
            x,
            [code.add(first, i) for i in range(count)],
            w,
            [code.add(at, i) for i in range(span)],
            inputs,
            arithmetic,
            span,
        )
        column = code.mul(at, LANES)
        for row, totals in enumerate(sums):
            for i, total in enumerate(totals):
                if offsets is not None:
                    start = code.read(offsets, [code.add(column, i * LANES)])
                    total = code.let(f"arith.addf {total}, {start} : {FLOATS}")
                code.put(total, LANES, out, [code.add(first, row), code.add(column, i * LANES)])

    _each(d, rows, block, tiles // span, size, tile, span)
    return d.function()


def gated(
    name: str, rows: int, tiles: int, inputs: int, arithmetic: Arithmetic, activation: Activation, *, threads: int = 1
) -> str:
    """act(gate) * up: words [rows, stride], a weight [2 * tiles, inputs / k, 16, k] -> words [rows, stride].

    The first half of the weight is the gate's (https://arxiv.org/abs/2002.05202).
    """
    block = _block(rows, arithmetic)
    span = _span(min(rows, block), tiles, max(arithmetic.sums // 2, block))
    size = 2 * span * inputs * LANES * element_bytes(arithmetic)
    d = Kernel(name, workgroups(tiles // span, threads))
    code = d.code
    x = d.take((rows, stride(inputs, arithmetic)), "i32")
    w = d.take((2 * tiles, inputs * LANES), arithmetic.element)
    words = LANES // arithmetic.word
    out = d.give((rows, stride(tiles * LANES, arithmetic)), "i32")

    def tile(at: str, first: str, count: int) -> None:
        act = ACTIVATIONS[activation]
        both = [code.add(code.add(at, half), i) for half in (0, tiles) for i in range(span)]
        sums = sums_of(code, x, [code.add(first, i) for i in range(count)], w, both, inputs, arithmetic, span)
        column = code.mul(at, words)
        for row, totals in enumerate(sums):
            for i, (gate, up) in enumerate(zip(totals[:span], totals[span:], strict=True)):
                product = code.let(f"arith.mulf {act(code, gate)}, {up} : {FLOATS}")
                where = [code.add(first, row), code.add(column, i * words)]
                code.put(arithmetic.words(code, product), words, out, where)

    _each(d, rows, block, tiles // span, size, tile, span)
    return d.function()


def silu(code: Code, x: str) -> str:
    """x / (1 + exp(-x)) (https://arxiv.org/abs/1702.03118)."""
    power = code.let(f"math.exp {code.let(f'arith.negf {x} : {FLOATS}')} : {FLOATS}")
    below = code.let(f"arith.addf {power}, {code.floats(1.0)} : {FLOATS}")
    return code.let(f"arith.divf {x}, {below} : {FLOATS}")


def gelu_tanh(code: Code, x: str) -> str:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) (https://arxiv.org/abs/1606.08415)."""
    square = code.let(f"arith.mulf {x}, {x} : {FLOATS}")
    cube = code.let(f"arith.mulf {square}, {x} : {FLOATS}")
    inner = code.let(f"vector.fma {cube}, {code.floats(0.044715)}, {x} : {FLOATS}")
    bent = code.let(
        f"math.tanh {code.let(f'arith.mulf {inner}, {code.floats((2 / math.pi) ** 0.5)} : {FLOATS}')} : {FLOATS}"
    )
    half = code.let(f"arith.mulf {x}, {code.floats(0.5)} : {FLOATS}")
    return code.let(f"vector.fma {half}, {bent}, {half} : {FLOATS}")


ACTIVATIONS: Mapping[Activation, Callable[[Code, str], str]] = {"silu": silu, "gelu_tanh": gelu_tanh}


def _block(rows: int, arithmetic: Arithmetic) -> int:
    """Rows to sum at once, with two tiles. Of many rows half as many more share the work of widening the tiles, where
    there are registers for it."""
    usual = arithmetic.sums // 2
    return usual + usual // 4 * 2 if rows > 2 * usual else usual


def _span(rows: int, tiles: int, most: int) -> int:
    """Tiles to sum at once. A few rows alone are a few chains of sums, each of which waits for itself; and tiles side
    by side share what is loaded of the rows, and are fetched ahead as streams of their own."""
    return next(span for span in (4, 2, 1) if span == 1 or (span * rows <= most and tiles % span == 0))


def workgroups(parts: int, threads: int) -> int:
    """How many workgroups share `parts` of the work."""
    return min(parts, SHARES * threads)


def share_end(code: Code, number: str, count: int, parts: int) -> str:
    """Where share `number` of `count` begins, and the one before it ends: each is smaller than the one before.

    The first has nearly two of `count` shares of the work, and the last next to none, so that threads that began at
    different times, or run at different speeds, end together (trapezoid self-scheduling,
    https://doi.org/10.1109/71.205655).
    """
    left = code.let(f"arith.subi {code.index(count)}, {number} : index")
    rest = code.div(code.mul(code.let(f"arith.muli {left}, {left} : index"), parts), count * count)
    return code.let(f"arith.subi {code.index(parts)}, {rest} : index")


def _each(
    d: Kernel, rows: int, block: int, parts: int, size: int, tile: Callable[[str, str, int], None], span: int
) -> None:
    """Call `tile` for the workgroup's share of the parts of `span` tiles, and all rows, the rows in blocks."""
    code = d.code
    low, high = (share_end(code, code.add(d.workgroup(), end), d.workgroups, parts) for end in (0, 1))

    def rows_of(first_part: str, last_part: str) -> None:
        def rows_from(first: str, count: int) -> None:
            code.repeat(first_part, last_part, 1, lambda part: tile(code.mul(part, span), first, count))

        whole = rows // block * block
        if whole > block:
            code.repeat(code.index(0), code.index(whole), block, lambda first: rows_from(first, block))
        elif whole:
            rows_from(code.index(0), block)
        if rows % block:
            rows_from(code.index(whole), rows % block)

    if rows <= block:
        rows_of(low, high)
    else:
        per = max(1, GROUP_BYTES // size)
        code.repeat(low, high, per, lambda at: rows_of(at, code.least(code.add(at, per), high)))


def sums_of(
    code: Code,
    x: Value,
    rows: list[str],
    w: Value,
    tiles: list[str],
    inputs: int,
    arithmetic: Arithmetic,
    span: int = 0,
) -> list[list[str]]:
    """float32 [16] of each of some rows and tiles.

    With a `span` the weights are fetched ahead; the tiles that are summed next are those `span` further on.
    """
    steps, lefts = inputs // arithmetic.k, arithmetic.k // arithmetic.word
    unroll = next(n for n in (4 // lefts, 2, 1) if steps % n == 0)
    zero = code.floats(0.0)

    def turn(at: str, sums: list[str]) -> list[str]:
        sums = list(sums)
        if span:
            _prefetch(code, w, tiles, span, code.mul(at, LANES * arithmetic.k), unroll * arithmetic.k, arithmetic)
        for ahead in range(unroll):
            step = code.add(at, ahead)
            offset, word = code.mul(step, LANES * arithmetic.k), code.mul(step, lefts)
            right = [arithmetic.load(code, w, [tile, offset]) for tile in tiles]
            for part in range(lefts):
                column = code.add(word, part)
                for number, row in enumerate(rows):
                    left = arithmetic.spread(code, code.extract(x, [row, column]))
                    for i in range(len(tiles)):
                        at_sum = number * len(tiles) + i
                        sums[at_sum] = arithmetic.dot(code, sums[at_sum], right[i][part], left)
        return sums

    flat = code.loop(code.index(0), code.index(steps), unroll, [(zero, FLOATS)] * (len(rows) * len(tiles)), turn)
    return [flat[row * len(tiles) : (row + 1) * len(tiles)] for row in range(len(rows))]


def _prefetch(code: Code, w: Value, tiles: list[str], span: int, at: str, count: int, arithmetic: Arithmetic) -> None:
    """Fetch what the tiles' streams read `AHEAD` bytes after the `count` inputs from element `at` on."""
    length, size = w.shape[-1], element_bytes(arithmetic)
    soon = code.add(at, AHEAD // size)
    beyond = code.let(f"arith.cmpi uge, {soon}, {code.index(length)} : index")
    skipped = code.let(f"arith.select {beyond}, {code.index((span - 1) * length)}, {code.index(0)} : index")
    start = code.add(soon, skipped)
    for line in range(0, count * LANES, LINE // size):
        for tile in tiles:
            code.prefetch(w, [tile, code.add(start, line)])


def element_bytes(arithmetic: Arithmetic) -> int:
    """Of an element."""
    return {"f32": 4}.get(arithmetic.element, 2)
