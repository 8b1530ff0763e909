"""Products with a packed weight: plain, with a bias, and the gated pair of an MLP."""

from collections.abc import Callable

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, stride
from workers.iree.kernels.ir.builder import FLOATS, LANES, Code, Value
from workers.iree.kernels.ir.executable import Kernel
from workers.iree.kernels.ir.partition import Share, share_after, share_end
from workers.iree.kernels.matmul.prefetch import Fetch, both, shared, straight
from workers.iree.kernels.matmul.tiling import Cut
from workers.iree.kernels.rowwise.activations import ACTIVATIONS

GROUP_BYTES = 256 << 10
"""Weights that all rows pass by before the next are read: what the second cache holds."""

_Tile = Callable[[str, int, str, int, Fetch], None]
"""Sums a set of tiles for a block of rows: the first tile, how many, the first row, how many, and what to fetch."""


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

    def tile(at: str, span: int, first: str, count: int, fetch: Fetch) -> None:
        which = [code.add(first, i) for i in range(count)]
        tiles = [code.add(at, i) for i in range(span)]
        sums = sums_of(code, x, which, w, tiles, cut.inputs, cut.arithmetic, fetch)
        column = code.mul(at, LANES)
        for row, totals in enumerate(sums):
            for i, total in enumerate(totals):
                if offsets is not None:
                    start = code.read(offsets, [code.add(column, i * LANES)])
                    total = code.let(f"arith.addf {total}, {start} : {FLOATS}")
                code.put(total, LANES, out, [code.add(first, row), code.add(column, i * LANES)])

    _each(code, share, cut, live, w, tile)


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

    def tile(at: str, span: int, first: str, count: int, fetch: Fetch) -> None:
        which = [code.add(first, i) for i in range(count)]
        halves = [[code.add(code.add(at, half), i) for i in range(span)] for half in (0, cut.tiles)]
        turns = [[*halves[0], *halves[1]]] if cut.together(count) else halves
        parts = [sums_of(code, x, which, w, each, cut.inputs, arithmetic, fetch) for each in turns]
        column = code.mul(at, words)
        for row in range(count):
            totals = [total for part in parts for total in part[row]]
            for i, (gate, up) in enumerate(zip(totals[:span], totals[span:], strict=True)):
                product = code.let(f"arith.mulf {ACTIVATIONS[activation](code, gate)}, {up} : {FLOATS}")
                where = [code.add(first, row), code.add(column, i * words)]
                code.put(arithmetic.words(code, product), words, out, where)

    _each(code, share, cut, live, w, tile)


def _each(code: Code, share: Share, cut: Cut, live: Value | None, w: Value, tile: _Tile) -> None:
    """Call `tile` for a share of the sets of tiles and all rows, or the `live` ones; the rows in blocks."""

    def begin(number: str, span: int) -> str:
        """The first set of a share."""
        return share_end(code, number, share.count, cut.sets(span))

    def share_of(span: int) -> tuple[str, str]:
        """The first set of the share, and the end."""
        return begin(share.number, span), begin(code.add(share.number, 1), span)

    def blocks(height: int, end: str, last: str) -> None:
        span, several = cut.span(height), cut.heights.blocks(height) > 1
        low, high = share_of(span)
        later = begin(share_after(code, share), span)

        def rows_of(number: str) -> None:
            at, following = cut.first_tile(code, number, span), code.add(number, 1)
            within = code.let(f"arith.cmpi ult, {following}, {high} : index")
            following = code.let(f"arith.select {within}, {following}, {later} : index")
            distance = code.minus(cut.first_tile(code, following, span), at)

            def block(row: str) -> None:
                fetch = straight(code, w, span, height)
                if several:
                    fetch = both(fetch, shared(code, w, distance, code.div(row, height)))
                tile(at, span, code.least(row, last), height, fetch)

            code.repeat(code.index(0), end, height, block)

        code.repeat(low, high, 1, rows_of)

    def all_rows() -> None:
        height = min(cut.rows, cut.block)
        span, rest = cut.span(height), cut.rows % height
        whole = code.index(cut.rows - rest)
        per = max(1, GROUP_BYTES // cut.size(span))

        def some(low: str, high: str, first: str, count: int) -> None:
            fetch = straight(code, w, span, count)
            code.repeat(low, high, 1, lambda at: tile(cut.first_tile(code, at, span), span, first, count, fetch))

        def group(low: str, high: str) -> None:
            code.repeat(code.index(0), whole, height, lambda first: some(low, high, first, height))
            if rest:
                some(low, high, whole, rest)

        low, high = share_of(span)
        if cut.rows > height:
            code.repeat(low, high, per, lambda at: group(at, code.least(code.add(at, per), high)))
        else:
            some(low, high, code.index(0), height)

    if live is not None:
        cut.heights.choose(code, live, blocks)
    else:
        all_rows()


def sums_of(
    code: Code,
    x: Value,
    rows: list[str],
    w: Value,
    tiles: list[str],
    inputs: int,
    arithmetic: Arithmetic,
    fetch: Fetch,
) -> list[list[str]]:
    """float32 [16] of each of some rows and tiles."""
    steps, lefts = inputs // arithmetic.k, arithmetic.k // arithmetic.word
    unroll = next(n for n in (4 // lefts, 2, 1) if steps % n == 0)
    zero = code.floats(0.0)
    # Registers: a sum of each row and tile, all parts of each tile, one of a row's words, and what parts are made by.
    roomy = len(tiles) * (len(rows) + lefts) + 2 <= 2 * arithmetic.sums

    def turn(at: str, sums: list[str]) -> list[str]:
        sums = list(sums)
        per = LANES * arithmetic.k
        fetch(tiles, code.mul(at, per), unroll * per)
        for ahead in range(unroll):
            step = code.add(at, ahead)
            offset, word = code.mul(step, per), code.mul(step, lefts)
            whole = [arithmetic.load(code, w, [tile, offset]) for tile in tiles] if roomy else []
            for part in range(lefts):
                right = [parts[part] for parts in whole] or [
                    arithmetic.load_part(code, w, [tile, offset], part) for tile in tiles
                ]
                column = code.add(word, part)
                for number, row in enumerate(rows):
                    left = arithmetic.spread(code, code.extract(x, [row, column]))
                    for i in range(len(tiles)):
                        at_sum = number * len(tiles) + i
                        sums[at_sum] = arithmetic.dot(code, sums[at_sum], right[i], left)
        return sums

    flat = code.loop(code.index(0), code.index(steps), unroll, [(zero, FLOATS)] * (len(rows) * len(tiles)), turn)
    return [flat[row * len(tiles) : (row + 1) * len(tiles)] for row in range(len(rows))]
