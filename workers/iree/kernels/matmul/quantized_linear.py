"""Products with weights of few bits, written by hand: tile after tile, for as many rows at once as registers allow."""

from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import FLOATS, LANES, LINE, Code, Value
from workers.iree.kernels.ir.executable import Kernel
from workers.iree.kernels.ir.partition import Share, share_end
from workers.iree.kernels.matmul.quantized_product import Factors, Product
from workers.iree.kernels.matmul.quantized_tile import Fetches, fetch, fetch_straight, tile_sums
from workers.iree.kernels.matmul.row_blocks import Heights

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
    rows, work = p.rounded.rows, _Work(code, p, factors, out, bias, low, high)
    heights = Heights(rows, p.tallest)

    def of_height(height: int, end: str, last: str) -> None:
        count = code.div(code.add(end, height - 1), height)
        work.all_tiles(_Blocks(height, heights.blocks(height), -(-rows // height)), count, last)

    if live is not None:
        heights.choose(code, live, of_height)
        return
    count = -(-rows // p.tallest)
    height = -(-rows // count)
    work.all_tiles(_Blocks(height, count, count), code.index(count), code.index(rows - height))


@dataclass(frozen=True, slots=True)
class _Work:
    """A share of a product: its operands, and the first of its tiles and their end."""

    code: Code
    p: Product
    factors: Factors
    out: Value
    bias: Value | None
    low: str
    high: str

    def all_tiles(self, b: _Blocks, count: str, last: str) -> None:
        """Multiply so many blocks, the last of which begins at a certain row: as many as pass by a tile together by
        every tile, then the others."""
        code = self.code

        def some(first: str) -> None:
            end = code.least(code.add(first, b.together), count)

            def tile(at: str) -> None:
                def block(number: str) -> None:
                    row = code.least(code.mul(number, b.height), last)
                    self._block(b, row, at, lambda: code.minus(number, first))

                code.repeat(first, end, 1, block)

            code.repeat(self.low, self.high, 1, tile)

        code.repeat(code.index(0), count, b.together, some)

    def _block(self, b: _Blocks, first: str, at: str, turn: Callable[[], str]) -> None:
        """Multiply the rows from `first` on by the tile `at`; `turn` is which of the blocks that it is read for."""
        code, p = self.code, self.p
        rows = [code.add(first, row) for row in range(b.height)]
        column = code.mul(at, LANES)

        def soon(group: str, byte: str) -> Fetches:
            return self._fetches(b, turn(), at, group, byte)

        for row, total in zip(rows, tile_sums(code, p, self.factors, at, rows, soon), strict=True):
            if self.bias is not None:
                total = code.let(f"arith.addf {total}, {code.read(self.bias, [column])} : {FLOATS}")
            code.put(total, LANES, self.out, [row, column])

    def _fetches(self, b: _Blocks, turn: str, at: str, group: str, byte: str) -> Fetches:
        """A single block of rows reads on in memory, several of them share the next tile."""
        code, p = self.code, self.p
        if b.together == 1:
            return fetch_straight(code, p, self.factors, at, byte)
        lines = -(-p.vectors // b.sharing)
        groups_before = code.add(code.mul(turn, p.rounded.groups), group)
        return fetch(code, self.factors, code.add(at, 1), code.mul(groups_before, lines * LINE), lines)
