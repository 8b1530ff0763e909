"""Products with weights of few bits, written by hand: tile after tile, for as many rows at once as registers allow."""

from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.code import FLOATS, LANES, Code, Value
from workers.iree.kernels.executable import Kernel
from workers.iree.kernels.heights import Heights
from workers.iree.kernels.product import Factors, Product
from workers.iree.kernels.shares import Share, share_end
from workers.iree.kernels.tile import Fetches, fetch, fetch_tiles, tile_sums
from workers.iree.quantized import LINE

ROWS_IN_CACHE = 64
"""Rows that are multiplied by a tile of weights before the next tile: their activations stay in the second cache."""


def product(name: str, p: Product, *, bias: bool = False, live: bool = False) -> str:
    """What `rounding.round_rows` gives, weights int8 [tiles, bytes] (, bias f32 [outputs]) (, live i32 [1])
    -> f32 [rows, outputs], of which the first `live` rows are computed.
    """
    d = Kernel(name, p.workgroups)
    factors = Factors.taken(p, d)
    offsets = d.take((p.outputs,), "f32") if bias else None
    number = d.take((1,), "i32") if live else None
    out = d.give((p.rounded.rows, p.outputs), "f32")
    add_product(d.code, Share(d.workgroup(), d.workgroups), p, factors, out, offsets, number)
    return d.function()


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The blocks of one height into which rows are cut; the last one begins sooner rather than reach further."""

    height: int
    least: int
    most: int

    @property
    def together(self) -> int:
        """Blocks that are multiplied by a tile before the next tile."""
        return max(1, min(self.most, ROWS_IN_CACHE // self.height))

    @property
    def sharing(self) -> int:
        """Blocks that fetch the next tile between them."""
        return min(self.least, self.together)


def add_product(
    code: Code,
    share: Share,
    p: Product,
    factors: Factors,
    out: Value,
    bias: Value | None = None,
    live: Value | None = None,
) -> None:
    """Write a share of `product`."""
    low, high = (share_end(code, code.add(share.number, end), share.count, p.tiles) for end in (0, 1))
    rows = p.rounded.rows

    def tile(at: str, first: str, height: int, soon: Callable[[str, str], Fetches]) -> None:
        numbers = [code.add(first, row) for row in range(height)]
        column = code.mul(at, LANES)
        for number, (total,) in zip(numbers, tile_sums(code, p, factors, [at], numbers, soon), strict=True):
            if bias is not None:
                total = code.let(f"arith.addf {total}, {code.read(bias, [column])} : {FLOATS}")
            code.put(total, LANES, out, [number, column])

    def blocks(b: _Blocks, count: str, last: str) -> None:
        """All of the share's tiles, for so many blocks, the last of which begins at a certain row."""

        def some(first: str) -> None:
            end = code.least(code.add(first, b.together), count)

            def each(at: str) -> None:
                def block(number: str) -> None:
                    row = code.least(code.mul(number, b.height), last)
                    tile(at, row, b.height, lambda group, byte: soon(b, code.minus(number, first), at, group, byte))

                code.repeat(first, end, 1, block)

            code.repeat(low, high, 1, each)

        code.repeat(code.index(0), count, b.together, some)

    def soon(b: _Blocks, turn: str, at: str, group: str, byte: str) -> Fetches:
        """A single block of rows reads on in memory, several of them share the next tile."""
        if b.together == 1:
            return fetch_tiles(code, p, factors, [at], byte)
        lines = -(-p.vectors // b.sharing)
        groups_before = code.add(code.mul(turn, p.rounded.groups), group)
        return fetch(code, factors, code.add(at, 1), code.mul(groups_before, lines * LINE), lines)

    heights = Heights(rows, p.tallest)

    def of_height(height: int, end: str, last: str) -> None:
        limits = [-(-limit // height) for limit, its in heights.limits if its == height]
        blocks(_Blocks(height, min(limits), -(-rows // height)), code.div(code.add(end, height - 1), height), last)

    if live is not None:
        heights.choose(code, live, of_height)
        return
    count = -(-rows // p.tallest)
    height = -(-rows // count)
    blocks(_Blocks(height, count, count), code.index(count), code.index(rows - height))
