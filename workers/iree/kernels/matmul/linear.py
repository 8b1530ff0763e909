"""Products with a packed weight: plain, with a bias, and the gated pair of an MLP."""

from collections.abc import Callable

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, stride
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import Share
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.prefetch import Fetch, both, shared, straight
from workers.iree.kernels.matmul.tiling import Cut
from workers.iree.kernels.rowwise.activations import ACTIVATIONS

GROUP_BYTES = 256 << 10
"""Weights that all rows are multiplied by before the next are read: what L2 holds."""

_Tile = Callable[[Value, int, Value, int, Fetch], None]
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
    """Packed words [rows, stride], a weight [tiles, inputs / k, 16, k] (, bias f32 [tiles * 16]) (, live i32 [1])
    -> f32 [rows, tiles * 16], of which the first `live` rows are computed.
    """
    cut = Cut(rows, tiles, inputs, arithmetic, 1, live)
    d = Kernel(name, cut.shares(threads))
    x = d.take((rows, stride(inputs, arithmetic)), "i32")
    w = d.take((tiles, inputs * LANES), arithmetic.element)
    offsets = d.take((tiles * LANES,), "f32") if bias else None
    number = d.take((1,), "i32") if live else None
    out = d.give((rows, tiles * LANES), "f32")
    add_linear(d.code, d.share, cut, x, w, out, offsets, number)
    return d.function()


def add_linear(
    code: Code,
    share: Share,
    cut: Cut,
    x: Memory,
    w: Memory,
    out: Memory,
    offsets: Memory | None = None,
    live: Memory | None = None,
) -> None:
    """Write a share of `linear`."""

    def tile(at: Value, span: int, first: Value, count: int, fetch: Fetch) -> None:
        rows, tiles = [first + i for i in range(count)], [at + i for i in range(span)]
        sums = sums_of(code, x, rows, w, tiles, cut.inputs, cut.arithmetic, fetch)
        column = at * LANES
        for row, totals in enumerate(sums):
            for i, total in enumerate(totals):
                if offsets is not None:
                    total = total + offsets.load_vector([column + i * LANES])
                out.store(total, [first + row, column + i * LANES])

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
    """act(gate) * up: packed words [rows, stride], a weight [2 * tiles, inputs / k, 16, k] (, live i32 [1])
    -> packed words [rows, stride], of which the first `live` rows are computed.

    The first half of the weight is the gate's (https://arxiv.org/abs/2002.05202).
    """
    cut = Cut(rows, tiles, inputs, arithmetic, 2, live)
    d = Kernel(name, cut.shares(threads))
    x = d.take((rows, stride(inputs, arithmetic)), "i32")
    w = d.take((2 * tiles, inputs * LANES), arithmetic.element)
    number = d.take((1,), "i32") if live else None
    out = d.give((rows, stride(tiles * LANES, arithmetic)), "i32")
    add_gated(d.code, d.share, cut, x, w, out, activation, number)
    return d.function()


def add_gated(
    code: Code,
    share: Share,
    cut: Cut,
    x: Memory,
    w: Memory,
    out: Memory,
    activation: Activation,
    live: Memory | None = None,
) -> None:
    """Write a share of `gated`."""
    arithmetic, words = cut.arithmetic, LANES // cut.arithmetic.per_word

    def tile(at: Value, span: int, first: Value, count: int, fetch: Fetch) -> None:
        rows = [first + i for i in range(count)]
        halves = [[at + half + i for i in range(span)] for half in (0, cut.tiles)]
        turns = [[*halves[0], *halves[1]]] if cut.together(count) else halves
        parts = [sums_of(code, x, rows, w, each, cut.inputs, arithmetic, fetch) for each in turns]
        column = at * words
        for row in range(count):
            totals = [total for part in parts for total in part[row]]
            for i, (gate, up) in enumerate(zip(totals[:span], totals[span:], strict=True)):
                product = ACTIVATIONS[activation](gate) * up
                at_row, at_column = first + row, column + i * words
                out.store(arithmetic.pack(product), [at_row, at_column])

    _each(code, share, cut, live, w, tile)


def _each(code: Code, share: Share, cut: Cut, live: Memory | None, w: Memory, tile: _Tile) -> None:
    """Call `tile` for a share of the sets of tiles and all rows, or the `live` ones; the rows in blocks."""

    def live_blocks(height: int, end: Value, last: Value) -> None:
        span, several = cut.span(height), cut.heights.blocks(height) > 1
        low, high = share.tapered_range(cut.sets(span))
        later = share.tapered_start(cut.sets(span), share.next())

        def set_of_tiles(number: Value) -> None:
            at, following = cut.first_tile(number, span), number + 1
            following = (following < high).select(following, later)
            distance = cut.first_tile(following, span) - at

            def block(row: Value) -> None:
                fetch = straight(w, span, height)
                if several:
                    fetch = both(fetch, shared(w, distance, row // height))
                tile(at, span, row.minimum(last), height, fetch)

            code.repeat(0, end, block, height)

        code.repeat(low, high, set_of_tiles)

    if live is not None:
        cut.heights.choose(code, live, live_blocks)
    else:
        _all_rows(code, share, cut, w, tile)


def _all_rows(code: Code, share: Share, cut: Cut, w: Memory, tile: _Tile) -> None:
    """Call `tile` for a share of the sets of tiles and all rows."""
    height = min(cut.rows, cut.block)
    span, rest = cut.span(height), cut.rows % height
    whole = code.index(cut.rows - rest)
    per = max(1, GROUP_BYTES // cut.size(span))

    def some(low: Value, high: Value, first: Value, count: int) -> None:
        fetch = straight(w, span, count)
        code.repeat(low, high, lambda at: tile(cut.first_tile(at, span), span, first, count, fetch))

    def group(low: Value, high: Value) -> None:
        code.repeat(0, whole, lambda first: some(low, high, first, height), height)
        if rest:
            some(low, high, whole, rest)

    low, high = share.tapered_range(cut.sets(span))
    if cut.rows > height:
        code.repeat(low, high, lambda at: group(at, (at + per).minimum(high)), per)
    else:
        some(low, high, code.index(0), height)


def sums_of(
    code: Code,
    x: Memory,
    rows: list[Value],
    w: Memory,
    tiles: list[Value],
    inputs: int,
    arithmetic: Arithmetic,
    fetch: Fetch,
) -> list[list[Value]]:
    """Return float32 [16] of each of some rows and tiles."""
    steps, words = inputs // arithmetic.k, arithmetic.k // arithmetic.per_word
    unroll = next(n for n in (4 // words, 2, 1) if steps % n == 0)
    # Registers: a sum of each row and tile, all parts of each tile, one of a row's words, and what parts are made by.
    roomy = len(tiles) * (len(rows) + words) + 2 <= 2 * arithmetic.accumulators

    def add(at: Value, sums: list[Value]) -> list[Value]:
        sums = list(sums)
        per = LANES * arithmetic.k
        fetch(tiles, at * per, unroll * per)
        for ahead in range(unroll):
            step = at + ahead
            offset, word = step * per, step * words
            whole = [arithmetic.load(w, [tile, offset]) for tile in tiles] if roomy else []
            for part in range(words):
                right = [parts[part] for parts in whole] or [
                    arithmetic.load_part(w, [tile, offset], part) for tile in tiles
                ]
                column = word + part
                for number, row in enumerate(rows):
                    left = arithmetic.broadcast(x.load([row, column]))
                    for i in range(len(tiles)):
                        at_sum = number * len(tiles) + i
                        sums[at_sum] = arithmetic.dot(sums[at_sum], right[i], left)
        return sums

    flat = code.loop(0, steps, [code.floats(0.0)] * (len(rows) * len(tiles)), add, unroll)
    return [flat[row * len(tiles) : (row + 1) * len(tiles)] for row in range(len(rows))]
