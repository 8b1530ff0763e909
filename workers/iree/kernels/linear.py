"""Products with a packed weight: plain, with a bias, and the gated pair of an MLP."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workers.architectures.parts import Activation
from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import FLOATS, LANES, SIZES, Code, Value
from workers.iree.kernels.executable import Kernel
from workers.iree.kernels.fetch import fetch
from workers.iree.kernels.heights import Heights
from workers.iree.kernels.shares import Share, share_end, workgroups

PADDING = LANES
"""Words after each row of a left operand: rows a power of two apart would fall into the same lines of the cache."""
GROUP_BYTES = 256 << 10
"""Weights that all rows pass by before the next are read: what the second cache holds."""


def stride(inputs: int, arithmetic: Arithmetic) -> int:
    """Words between rows of a left operand."""
    return inputs // arithmetic.word + PADDING


def _most(arithmetic: Arithmetic) -> int:
    """Sums side by side where nothing but them, a tile's weights and one row is in the registers."""
    return arithmetic.sums + arithmetic.sums // 2


@dataclass(frozen=True, slots=True)
class Cut:
    """How the rows and tiles of a product are cut into what is summed at once."""

    rows: int
    tiles: int
    """Of outputs: a gated product has twice as many of weights."""
    inputs: int
    arithmetic: Arithmetic
    halves: int
    """Tiles of weights for one of outputs."""
    live: bool

    @property
    def heights(self) -> Heights:
        """Of live rows. Tall blocks have one tile at a time: widening it costs as much as one row more."""
        return Heights(self.rows, _most(self.arithmetic))

    @property
    def block(self) -> int:
        """Rows to sum at once where all are live, with two tiles. Of many rows half as many more share the work of
        widening the tiles, where there are registers for it."""
        usual = self.arithmetic.sums // 2
        return usual + usual // 4 * 2 if self.rows > 2 * usual else usual

    def span(self, height: int) -> int:
        """Tiles to sum at once. A few rows alone are a few chains of sums, each of which waits for itself; and tiles
        side by side share what is loaded of the rows, and are fetched ahead as streams of their own."""
        few = self.arithmetic.sums // self.halves
        two = _most(self.arithmetic) if self.halves == 1 else few
        return next((n for n, most in ((4, few), (2, two)) if n * height <= most and self.tiles % n == 0), 1)

    @property
    def unit(self) -> int:
        """Tiles that are never shared out: those of the widest span."""
        heights = self.heights.all if self.live else (min(self.rows, self.block),)
        return max(map(self.span, heights))

    @property
    def size(self) -> int:
        """Bytes of a unit's weights."""
        return self.halves * self.unit * self.inputs * LANES * SIZES[self.arithmetic.element]

    def shares(self, threads: int) -> int:
        """Into how many shares the work is cut."""
        return workgroups(self.tiles // self.unit, threads)


def linear(
    name: str,
    rows: int,
    tiles: int,
    inputs: int,
    arithmetic: Arithmetic,
    *,
    bias: bool,
    threads: int = 1,
    live: bool = False,
) -> str:
    """words [rows, stride], a weight [tiles, inputs / k, 16, k] (, bias f32 [tiles * 16]) (, live i32 [1])
    -> f32 [rows, tiles * 16], of which the first `live` rows are computed.
    """
    cut = Cut(rows, tiles, inputs, arithmetic, 1, live)
    d = Kernel(name, cut.shares(threads))
    x = d.take((rows, stride(inputs, arithmetic)), "i32")
    w = d.take((tiles, inputs * LANES), arithmetic.element)
    offsets = d.take((tiles * LANES,), "f32") if bias else None
    number = d.take((1,), "i32") if live else None
    out = d.give((rows, tiles * LANES), "f32")
    add_linear(d.code, Share(d.workgroup(), d.workgroups), cut, x, w, out, offsets, number)
    return d.function()


def add_linear(
    code: Code,
    share: Share,
    cut: Cut,
    x: Value,
    w: Value,
    out: Value,
    offsets: Value | None = None,
    live: Value | None = None,
) -> None:
    """Write a share of `linear`."""

    def tile(at: str, span: int, first: str, count: int) -> None:
        which = [code.add(first, i) for i in range(count)]
        tiles = [code.add(at, i) for i in range(span)]
        sums = sums_of(code, x, which, w, tiles, cut.inputs, cut.arithmetic, span)
        column = code.mul(at, LANES)
        for row, totals in enumerate(sums):
            for i, total in enumerate(totals):
                if offsets is not None:
                    start = code.read(offsets, [code.add(column, i * LANES)])
                    total = code.let(f"arith.addf {total}, {start} : {FLOATS}")
                code.put(total, LANES, out, [code.add(first, row), code.add(column, i * LANES)])

    _each(code, share, cut, live, tile)


def gated(
    name: str,
    rows: int,
    tiles: int,
    inputs: int,
    arithmetic: Arithmetic,
    activation: Activation,
    *,
    threads: int = 1,
    live: bool = False,
) -> str:
    """act(gate) * up: words [rows, stride], a weight [2 * tiles, inputs / k, 16, k] (, live i32 [1])
    -> words [rows, stride], of which the first `live` rows are computed.

    The first half of the weight is the gate's (https://arxiv.org/abs/2002.05202).
    """
    cut = Cut(rows, tiles, inputs, arithmetic, 2, live)
    d = Kernel(name, cut.shares(threads))
    x = d.take((rows, stride(inputs, arithmetic)), "i32")
    w = d.take((2 * tiles, inputs * LANES), arithmetic.element)
    number = d.take((1,), "i32") if live else None
    out = d.give((rows, stride(tiles * LANES, arithmetic)), "i32")
    add_gated(d.code, Share(d.workgroup(), d.workgroups), cut, x, w, out, activation, number)
    return d.function()


def add_gated(
    code: Code,
    share: Share,
    cut: Cut,
    x: Value,
    w: Value,
    out: Value,
    activation: Activation,
    live: Value | None = None,
) -> None:
    """Write a share of `gated`."""
    arithmetic, words = cut.arithmetic, LANES // cut.arithmetic.word

    def tile(at: str, span: int, first: str, count: int) -> None:
        which = [code.add(first, i) for i in range(count)]
        halves = [[code.add(code.add(at, half), i) for i in range(span)] for half in (0, cut.tiles)]
        # Where the registers do not hold the sums of both halves, one waits in memory for the other.
        together = 2 * span * count <= _most(arithmetic)
        turns = [[*halves[0], *halves[1]]] if together else halves
        parts = [sums_of(code, x, which, w, each, cut.inputs, arithmetic, span) for each in turns]
        column = code.mul(at, words)
        for row in range(count):
            totals = [total for part in parts for total in part[row]]
            for i, (gate, up) in enumerate(zip(totals[:span], totals[span:], strict=True)):
                product = code.let(f"arith.mulf {ACTIVATIONS[activation](code, gate)}, {up} : {FLOATS}")
                where = [code.add(first, row), code.add(column, i * words)]
                code.put(arithmetic.words(code, product), words, out, where)

    _each(code, share, cut, live, tile)


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


def _each(code: Code, share: Share, cut: Cut, live: Value | None, tile: Callable[[str, int, str, int], None]) -> None:
    """Call `tile` (the first tile, how many, the first row, how many) for a share of the tiles and all rows, or the
    `live` ones; the rows in blocks."""
    parts = cut.tiles // cut.unit
    ends = [share_end(code, code.add(share.number, end), share.count, parts) for end in (0, 1)]
    low, high = (code.mul(end, cut.unit) for end in ends)

    def grouped(rows_of: Callable[[str, str], None]) -> None:
        """For as many tiles at a time as the cache holds."""
        per = max(1, GROUP_BYTES // cut.size) * cut.unit
        code.repeat(low, high, per, lambda at: rows_of(at, code.least(code.add(at, per), high)))

    def tiles(first_tile: str, last_tile: str, first: str, count: int, span: int) -> None:
        code.repeat(first_tile, last_tile, span, lambda at: tile(at, span, first, count))

    def blocks(height: int, end: str, last: str) -> None:
        def rows_of(first_tile: str, last_tile: str) -> None:
            def block(at: str) -> None:
                tiles(first_tile, last_tile, code.least(at, last), height, cut.span(height))

            code.repeat(code.index(0), end, height, block)

        grouped(rows_of)

    def all_rows(first_tile: str, last_tile: str) -> None:
        block, rest = cut.block, cut.rows % cut.block
        span, whole = cut.span(min(cut.rows, block)), cut.rows - rest
        code.repeat(
            code.index(0), code.index(whole), block, lambda first: tiles(first_tile, last_tile, first, block, span)
        )
        if rest:
            tiles(first_tile, last_tile, code.index(whole), rest, span)

    if live is not None:
        cut.heights.choose(code, live, blocks)
    elif cut.rows > cut.block:
        grouped(all_rows)
    else:
        tiles(low, high, code.index(0), cut.rows, cut.span(cut.rows))


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
            per = LANES * arithmetic.k
            fetch(code, w, tiles, span, code.mul(at, per), unroll * per, len(rows))
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
