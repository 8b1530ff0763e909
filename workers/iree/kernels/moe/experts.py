"""A mixture of experts: products in which each row meets the weights of its experts alone.

Every pair (see `routing`) has sums of its own: which rows share an expert changes nothing in them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, stride
from workers.iree.kernels.ir.builder import FLOATS, LANES, SIZES, Code, Value
from workers.iree.kernels.ir.dispatch import Dispatch
from workers.iree.kernels.ir.executable import Kernel
from workers.iree.kernels.ir.partition import SHARES
from workers.iree.kernels.matmul.linear import GROUP_BYTES, sums_of
from workers.iree.kernels.matmul.prefetch import straight
from workers.iree.kernels.moe.routing import Mixture
from workers.iree.kernels.rowwise.activations import ACTIVATIONS

SPAN = 4
"""The most tiles of one kind that are summed at once."""
MANY = 64
"""Workgroups for each thread that are so many that eight at a time, as they are handed out then, are few."""
BLOCKS = (8, 2, 1)
"""Pairs of one expert that are summed at once: as many as there are left."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How the tiles of every chosen expert are split: into `each` workgroups, in units of `unit` tiles."""

    mixture: Mixture
    tiles: int
    """Of one expert; where a gate and its other half are summed together, of the gate."""
    unit: int
    each: int

    @classmethod
    def of(cls, m: Mixture, tiles: int, tile_bytes: int, threads: int, span: int = 1) -> "Shares":
        """`tile_bytes` of weights are read for a tile. All pairs of a share pass by weights that the cache holds.

        Few workgroups are handed out one at a time, as with `linear.SHARES`; otherwise there are many.
        """
        unit = math.gcd(tiles, span)
        parts = tiles // unit
        each = max(-(-tiles * tile_bytes // GROUP_BYTES), SHARES * threads // m.groups)
        if each * m.groups > SHARES * threads:
            each = max(each, -(-MANY * threads // m.groups))
        return cls(m, tiles, unit, max(1, min(parts, each)))

    @property
    def workgroups(self) -> int:
        return self.each * self.mixture.groups

    @property
    def lists(self) -> tuple[int, int, int]:
        """The sizes of what `routing.group` gives."""
        m = self.mixture
        return (m.pairs, m.groups + 1, m.groups + 1)

    def blocks(self, most: int) -> list[int]:
        """Pairs to sum at once, at most so many: an expert has no more of them than there are rows."""
        return [size for size in BLOCKS if size <= min(most, self.mixture.rows)]

    def walk(
        self,
        code: Code,
        places: list[Value],
        blocks: list[int],
        span: Callable[[int], int],
        tile: Callable[[str, list[str], str, int], None],
    ) -> None:
        """Call `tile(expert, pairs, first tile, tiles)` for the workgroup %id: its share of its expert's tiles, for
        all of its pairs. `places` is what `routing.group` gives, `span` the tiles to sum at once for so many pairs.
        """
        order, chosen, starts = places
        which, share = code.div("%id", self.each), code.rem("%id", self.each)
        expert = code.extract_index(chosen, [which])
        at, end = (code.extract_index(starts, [code.add(which, i)]) for i in range(2))
        parts = self.tiles // self.unit
        low, high = (code.mul(code.div(code.mul(code.add(share, i), parts), self.each), self.unit) for i in range(2))
        for size in blocks:
            left = code.let(f"arith.subi {end}, {at} : index")
            whole = code.add(at, code.mul(code.div(left, size), size))

            def block(first: str, size: int = size) -> None:
                pairs = [code.extract_index(order, [code.add(first, i)]) for i in range(size)]
                step = span(size)
                code.repeat(low, high, step, lambda first_tile: tile(expert, pairs, first_tile, step))

            code.repeat(at, whole, size, block)
            at = whole


def experts_up(name: str, m: Mixture, arithmetic: Arithmetic, activation: Activation, *, threads: int = 1) -> str:
    """words [rows, stride] of width hidden, weights [count * 2 * ffn / 16, ...], what `routing.group` gives
    -> act(gate) * up of each pair, words [pairs, stride] of width ffn.
    """
    tiles, words, most = m.up_tiles, LANES // arithmetic.word, arithmetic.sums // 2
    size = m.hidden * LANES * SIZES[arithmetic.element]
    shares = Shares.of(m, tiles, 2 * size, threads, SPAN)
    d = Kernel(name, shares.workgroups)
    code = d.code
    x = d.take((m.rows, stride(m.hidden, arithmetic)), "i32")
    w = d.take((2 * tiles * m.experts.count, m.hidden * LANES), arithmetic.element)
    places = [d.take((length,), "i32") for length in shares.lists]
    out = d.give((m.pairs, stride(m.experts.ffn, arithmetic)), "i32")

    def tile(expert: str, pairs: list[str], first: str, span: int) -> None:
        rows = [code.div(pair, m.experts.per_token) for pair in pairs]
        gate = code.add(code.mul(expert, 2 * tiles), first)
        both = [code.add(code.add(gate, half), i) for half in (0, tiles) for i in range(span)]
        sums = sums_of(code, x, rows, w, both, m.hidden, arithmetic, straight(code, w, span, len(rows)))
        for pair, totals in zip(pairs, sums, strict=True):
            for i, (gates, ups) in enumerate(zip(totals[:span], totals[span:], strict=True)):
                value = code.let(f"arith.mulf {ACTIVATIONS[activation](code, gates)}, {ups} : {FLOATS}")
                where = [pair, code.mul(code.add(first, i), words)]
                code.put(arithmetic.words(code, value), words, out, where)

    shares.walk(code, places, shares.blocks(most), _spans(shares, most), tile)
    return d.function()


def experts_down(name: str, m: Mixture, arithmetic: Arithmetic, *, threads: int = 1) -> str:
    """words [pairs, stride] of width ffn, weights [count * hidden / 16, ...], what `routing.group` gives
    -> f32 [pairs, hidden].
    """
    tiles, inputs = m.down_tiles, m.experts.ffn
    shares = Shares.of(m, tiles, inputs * LANES * SIZES[arithmetic.element], threads, SPAN)
    d = Kernel(name, shares.workgroups)
    code = d.code
    x = d.take((m.pairs, stride(inputs, arithmetic)), "i32")
    w = d.take((tiles * m.experts.count, inputs * LANES), arithmetic.element)
    places = [d.take((length,), "i32") for length in shares.lists]
    out = d.give((m.pairs, m.hidden), "f32")

    def tile(expert: str, pairs: list[str], first: str, span: int) -> None:
        at = code.add(code.mul(expert, tiles), first)
        which, fetch = [code.add(at, i) for i in range(span)], straight(code, w, span, len(pairs))
        sums = sums_of(code, x, pairs, w, which, inputs, arithmetic, fetch)
        for pair, totals in zip(pairs, sums, strict=True):
            for i, total in enumerate(totals):
                code.put(total, LANES, out, [pair, code.mul(code.add(first, i), LANES)])

    shares.walk(code, places, shares.blocks(arithmetic.sums // 2), _spans(shares, arithmetic.sums), tile)
    return d.function()


def _spans(shares: Shares, sums: int) -> Callable[[int], int]:
    """Tiles to sum at once for so many pairs, where `sums` run side by side."""
    return lambda pairs: max(1, math.gcd(shares.unit, sums // pairs))


def combine(name: str, m: Mixture) -> str:
    """f32 [pairs, hidden] and the weights f32 [rows, per_token] -> their weighted sums f32 [rows, hidden]."""
    k = m.experts.per_token
    d = Dispatch(name, m.rows)
    code = d.code
    x, weights = d.take((m.pairs, m.hidden), "f32"), d.take((m.rows, k), "f32")
    out = d.give((m.rows, m.hidden), "f32")
    row = d.workgroup()
    shares = [code.spread(code.extract(weights, [row, code.index(i)])) for i in range(k)]
    first = code.mul(row, k)

    def turn(column: str, part: Value) -> Value:
        total = code.let(f"arith.mulf {code.read(x, [first, column])}, {shares[0]} : {FLOATS}")
        for i, share in enumerate(shares[1:], start=1):
            value = code.read(x, [code.add(first, i), column])
            total = code.let(f"vector.fma {value}, {share}, {total} : {FLOATS}")
        return code.write(total, LANES, part, [code.index(0), column])

    part = code.carry(code.index(0), code.index(m.hidden), LANES, code.empty((1, m.hidden), "f32"), turn)
    d.store(part, out, [row, "0"])
    return d.function()
