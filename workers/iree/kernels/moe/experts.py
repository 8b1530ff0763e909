"""The products of a mixture of experts: each row meets the weights of its experts alone.

Every pair (see `routing`) has sums of its own: which rows share an expert changes nothing in them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, stride
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES, size_of
from workers.iree.kernels.ir.operations import fma
from workers.iree.kernels.ir.partition import PARTITIONS_PER_THREAD
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.linear import L2_WEIGHT_BYTES, gemm_tile
from workers.iree.kernels.matmul.prefetch import prefetch_ahead
from workers.iree.kernels.moe.routing import Mixture
from workers.iree.kernels.rowwise.activations import ACTIVATIONS

SPAN = 4
"""The most tiles of one kind that are summed at once."""
MANY = 64
"""Workgroups for each thread that are so many that eight at a time, as they are handed out then, are few."""
BLOCKS = (8, 2, 1)
"""Pairs of one expert that are summed at once: as many as there are left."""


@dataclass(frozen=True, slots=True)
class ExpertPartition:
    """How the tiles of every chosen expert are divided: into `each` workgroups, in units of `unit` tiles."""

    mixture: Mixture
    tiles: int
    """Tiles of one expert; where a gate and its other half are summed together, of the gate."""
    unit: int
    each: int

    @classmethod
    def of(cls, m: Mixture, tiles: int, tile_bytes: int, threads: int, span: int = 1) -> "ExpertPartition":
        """`tile_bytes` of weights are read for a tile. All pairs of a partition use weights that L2 holds.

        Few workgroups are handed out one at a time, as `PARTITIONS_PER_THREAD` tells; otherwise there are many.
        """
        unit = math.gcd(tiles, span)
        parts = tiles // unit
        each = max(-(-tiles * tile_bytes // L2_WEIGHT_BYTES), PARTITIONS_PER_THREAD * threads // m.groups)
        if each * m.groups > PARTITIONS_PER_THREAD * threads:
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
        """Return the pairs to sum at once, at most so many: an expert has no more of them than there are rows."""
        return [size for size in BLOCKS if size <= min(most, self.mixture.rows)]

    def walk(
        self,
        d: Kernel,
        places: list[Memory],
        blocks: list[int],
        span: Callable[[int], int],
        tile: Callable[[Value, list[Value], Value, int], None],
    ) -> None:
        """Call `tile(expert, pairs, first tile, tiles)` for a workgroup: its share of its expert's tiles, for all of
        its pairs. `places` is what `routing.group` gives, `span` the tiles to sum at once for so many pairs.
        """
        code, (order, chosen, starts) = d.code, places
        which, share = d.workgroup // self.each, d.workgroup % self.each
        expert = chosen.load_index([which])
        at, end = (starts.load_index([which + i]) for i in range(2))
        parts = self.tiles // self.unit
        low, high = ((share + i) * parts // self.each * self.unit for i in range(2))
        for size in blocks:
            whole = at + (end - at) // size * size

            def block(first: Value, size: int = size) -> None:
                pairs = [order.load_index([first + i]) for i in range(size)]
                step = span(size)
                code.repeat(low, high, lambda first_tile: tile(expert, pairs, first_tile, step), step)

            code.repeat(at, whole, block, size)
            at = whole


def experts_up(name: str, m: Mixture, arithmetic: Arithmetic, activation: Activation, *, threads: int = 1) -> str:
    """Packed words [rows, stride] of width hidden, weights [count * 2 * ffn / 16, ...], what `routing.group` gives
    -> act(gate) * up of each pair, packed words [pairs, stride] of width ffn.
    """
    tiles, words, most = m.up_tiles, LANES // arithmetic.per_word, arithmetic.accumulators // 2
    size = m.hidden * LANES * size_of(arithmetic.element)
    partition = ExpertPartition.of(m, tiles, 2 * size, threads, SPAN)
    d = Kernel(name, partition.workgroups)
    x = d.take((m.rows, stride(m.hidden, arithmetic)), "i32")
    w = d.take((2 * tiles * m.experts.count, m.hidden * LANES), arithmetic.element)
    places = [d.take((length,), "i32") for length in partition.lists]
    out = d.give((m.pairs, stride(m.experts.ffn, arithmetic)), "i32")

    def tile(expert: Value, pairs: list[Value], first: Value, span: int) -> None:
        rows = [pair // m.experts.per_token for pair in pairs]
        gate = expert * (2 * tiles) + first
        both = [gate + half + i for half in (0, tiles) for i in range(span)]
        sums = gemm_tile(d.code, x, rows, w, both, m.hidden, arithmetic, prefetch_ahead(w, span, len(rows)))
        for pair, totals in zip(pairs, sums, strict=True):
            for i, (gates, ups) in enumerate(zip(totals[:span], totals[span:], strict=True)):
                value = ACTIVATIONS[activation](gates) * ups
                column = (first + i) * words
                out.store(arithmetic.pack(value), [pair, column])

    partition.walk(d, places, partition.blocks(most), _spans(partition, most), tile)
    return d.function()


def experts_down(name: str, m: Mixture, arithmetic: Arithmetic, *, threads: int = 1) -> str:
    """Packed words [pairs, stride] of width ffn, weights [count * hidden / 16, ...], what `routing.group` gives
    -> f32 [pairs, hidden].
    """
    tiles, inputs = m.down_tiles, m.experts.ffn
    partition = ExpertPartition.of(m, tiles, inputs * LANES * size_of(arithmetic.element), threads, SPAN)
    d = Kernel(name, partition.workgroups)
    x = d.take((m.pairs, stride(inputs, arithmetic)), "i32")
    w = d.take((tiles * m.experts.count, inputs * LANES), arithmetic.element)
    places = [d.take((length,), "i32") for length in partition.lists]
    out = d.give((m.pairs, m.hidden), "f32")

    def tile(expert: Value, pairs: list[Value], first: Value, span: int) -> None:
        at = expert * tiles + first
        which, prefetch = [at + i for i in range(span)], prefetch_ahead(w, span, len(pairs))
        sums = gemm_tile(d.code, x, pairs, w, which, inputs, arithmetic, prefetch)
        for pair, totals in zip(pairs, sums, strict=True):
            for i, total in enumerate(totals):
                out.store(total, [pair, (first + i) * LANES])

    partition.walk(
        d, places, partition.blocks(arithmetic.accumulators // 2), _spans(partition, arithmetic.accumulators), tile
    )
    return d.function()


def _spans(partition: ExpertPartition, sums: int) -> Callable[[int], int]:
    """Tiles to sum at once for so many pairs, where `sums` run side by side."""
    return lambda pairs: max(1, math.gcd(partition.unit, sums // pairs))


def combine(name: str, m: Mixture) -> str:
    """f32 [pairs, hidden] and the weights f32 [rows, per_token] -> their weighted sums f32 [rows, hidden]."""
    k = m.experts.per_token
    d = Kernel(name, m.rows)
    x, weights = d.take((m.pairs, m.hidden), "f32"), d.take((m.rows, k), "f32")
    out = d.give((m.rows, m.hidden), "f32")
    row = d.workgroup
    first, *others = (weights.load([row, i]).broadcast() for i in range(k))
    pair = row * k

    def some(column: Value) -> None:
        total = x.load_vector([pair, column]) * first
        for i, weight in enumerate(others, start=1):
            total = fma(x.load_vector([pair + i, column]), weight, total)
        out.store(total, [row, column])

    d.code.repeat(0, m.hidden, some, LANES)
    return d.function()
