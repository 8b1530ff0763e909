"""The products of a mixture of experts: each row is multiplied only by its own experts' weights.

Every pair (see `routing`) has sums of its own: which rows share an expert changes nothing in them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES, Type, size_of
from workers.iree.kernels.ir.operations import exp, fma
from workers.iree.kernels.ir.partition import PARTITIONS_PER_THREAD
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.linear import L2_WEIGHT_BYTES, gemm_tile
from workers.iree.kernels.matmul.prefetch import prefetch_ahead
from workers.iree.kernels.moe.routing import Mixture
from workers.iree.kernels.rowwise.activations import activated
from workers.iree.kernels.rowwise.row_workgroups import RowWorkgroups

MAX_TILES = 4
"""The most tiles of one half that are summed at once."""
MANY_WORKGROUPS = 64
"""Workgroups for each thread that are so many that eight at a time, as they are handed out then, are few."""
PAIR_BLOCKS = (8, 2, 1)
"""Pairs of one expert that are summed at once: as many as there are left."""


@dataclass(frozen=True, slots=True)
class ExpertPartition:
    """The division of every chosen expert's tiles into `each` workgroups, in units of `unit` tiles."""

    mixture: Mixture
    tiles: int
    """Tiles of one expert; where a gate and its other half are summed together, of the gate."""
    unit: int
    each: int

    @classmethod
    def of(cls, m: Mixture, tiles: int, tile_bytes: int, threads: int, max_tiles: int = 1) -> "ExpertPartition":
        """`tile_bytes` of weights are read for a tile. All pairs of a partition use weights that L2 holds.

        Few workgroups are handed out one at a time, as `PARTITIONS_PER_THREAD` tells; otherwise there are many.
        """
        unit = math.gcd(tiles, max_tiles)
        parts = tiles // unit
        each = max(-(-tiles * tile_bytes // L2_WEIGHT_BYTES), PARTITIONS_PER_THREAD * threads // m.groups)
        if each * m.groups > PARTITIONS_PER_THREAD * threads:
            each = max(each, -(-MANY_WORKGROUPS * threads // m.groups))
        return cls(m, tiles, unit, max(1, min(parts, each)))

    @property
    def workgroups(self) -> int:
        return self.each * self.mixture.groups

    def pair_blocks(self, most: int) -> list[int]:
        """Return the numbers of pairs to sum at once, at most `most`: an expert has no more pairs than there are
        rows."""
        return [size for size in PAIR_BLOCKS if size <= min(most, self.mixture.rows)]

    def max_tiles(self, accumulators: int) -> Callable[[int], int]:
        """Return a function of the number of pairs: how many tiles to sum at once with so many accumulators."""
        return lambda pairs: max(1, math.gcd(self.unit, accumulators // pairs))

    def each_tile(
        self,
        kernel: Kernel,
        lists: Sequence[Memory],
        pair_blocks: list[int],
        max_tiles: Callable[[int], int],
        write: Callable[[Value, list[Value], Value, int], None],
    ) -> None:
        """Call `write(expert, pairs, first tile, tiles)` for a workgroup: its part of an expert's tiles, for all pairs.

        `lists` is what `routing.group` gives.
        """
        code, (order, chosen, starts) = kernel.code, lists
        which, part = kernel.workgroup // self.each, kernel.workgroup % self.each
        expert = chosen.load_index([which])
        at, end = (starts.load_index([which + i]) for i in range(2))
        units = self.tiles // self.unit
        low, high = ((part + i) * units // self.each * self.unit for i in range(2))
        for size in pair_blocks:
            whole = at + (end - at) // size * size

            def block(first: Value, size: int = size) -> None:
                pairs = [order.load_index([first + i]) for i in range(size)]
                tiles = max_tiles(size)
                code.repeat(low, high, lambda first_tile: write(expert, pairs, first_tile, tiles), tiles)

            code.repeat(at, whole, block, size)
            at = whole


def experts_up(name: str, m: Mixture, arithmetic: Arithmetic, activation: Activation, *, threads: int = 1) -> str:
    """Packed words [rows, row_stride] of width hidden, weights [count * halves * ffn / 16, ...], what `routing.group`
    gives (, biases f32 [count * halves * ffn]) -> the GLU of each pair, or its activation without a gate, packed words
    [pairs, row_stride] of width ffn.
    """
    halves, tiles, words = m.experts.halves, m.up_tiles, LANES // arithmetic.per_word
    most = arithmetic.accumulators // halves
    tile_bytes = halves * m.hidden * LANES * size_of(arithmetic.element)
    partition = ExpertPartition.of(m, tiles, tile_bytes, threads, MAX_TILES)
    kernel = Kernel(name, partition.workgroups)
    x = kernel.input("x", (m.rows, row_stride(m.hidden, arithmetic)), "i32")
    w = kernel.input("weight", (halves * tiles * m.experts.count, m.hidden * LANES), arithmetic.element)
    lists, bias = m.take_lists(kernel), m.take_bias(kernel, halves * m.experts.ffn)
    out = kernel.output("out", (m.pairs, row_stride(m.experts.ffn, arithmetic)), "i32")

    def write(expert: Value, pairs: list[Value], first: Value, count: int) -> None:
        rows = [pair // m.experts.per_token for pair in pairs]
        begin = expert * (halves * tiles) + first
        which = [begin + half * tiles + i for half in range(halves) for i in range(count)]
        prefetch = prefetch_ahead(w, count, len(rows))
        sums = gemm_tile(kernel.code, x, rows, w, which, m.hidden, arithmetic, prefetch)
        for pair, totals in zip(pairs, sums, strict=True):
            for i in range(count):
                parts = totals[i::count]
                if bias is not None:
                    at = expert * (halves * m.experts.ffn) + (first + i) * LANES
                    parts = [part + bias.load_vector([at + n * m.experts.ffn]) for n, part in enumerate(parts)]
                column = (first + i) * words
                out.store(arithmetic.pack(activated(activation, parts)), [pair, column])

    partition.each_tile(kernel, lists, partition.pair_blocks(most), partition.max_tiles(most), write)
    return kernel.function()


def experts_down(name: str, m: Mixture, arithmetic: Arithmetic, *, threads: int = 1) -> str:
    """Packed words [pairs, row_stride] of width ffn, weights [count * hidden / 16, ...], what `routing.group` gives
    (, biases f32 [count * hidden]) -> f32 [pairs, hidden].
    """
    tiles, inputs, most = m.down_tiles, m.experts.ffn, arithmetic.accumulators
    partition = ExpertPartition.of(m, tiles, inputs * LANES * size_of(arithmetic.element), threads, MAX_TILES)
    kernel = Kernel(name, partition.workgroups)
    x = kernel.input("x", (m.pairs, row_stride(inputs, arithmetic)), "i32")
    w = kernel.input("weight", (tiles * m.experts.count, inputs * LANES), arithmetic.element)
    lists, bias = m.take_lists(kernel), m.take_bias(kernel, m.hidden)
    out = kernel.output("out", (m.pairs, m.hidden), "f32")

    def write(expert: Value, pairs: list[Value], first: Value, count: int) -> None:
        at = expert * tiles + first
        which, prefetch = [at + i for i in range(count)], prefetch_ahead(w, count, len(pairs))
        sums = gemm_tile(kernel.code, x, pairs, w, which, inputs, arithmetic, prefetch)
        for pair, totals in zip(pairs, sums, strict=True):
            for i, total in enumerate(totals):
                if bias is not None:
                    total = total + bias.load_vector([expert * m.hidden + (first + i) * LANES])
                out.store(total, [pair, (first + i) * LANES])

    partition.each_tile(kernel, lists, partition.pair_blocks(most // 2), partition.max_tiles(most), write)
    return kernel.function()


def combine(name: str, m: Mixture, *, live: bool = False, shared: bool = False, gate: bool = False) -> str:
    """f32 [pairs, hidden], the weights f32 [rows, per_token] (, what the shared expert computes f32 [rows, hidden]) (,
    the logits of its gate f32 [rows, 1]) (, live i32 [1]) -> their weighted sums f32 [rows, hidden], of which the first
    `live` rows are computed. The shared expert is added last, times the sigmoid of its gate."""
    k = m.experts.per_token
    groups = RowWorkgroups.of(m.rows)
    kernel = Kernel(name, groups.count)
    x = kernel.input("x", (m.pairs, m.hidden), "f32")
    weights = kernel.input("weights", (m.rows, k), "f32")
    every = kernel.input("shared", (m.rows, m.hidden), "f32") if shared else None
    gates = kernel.input("gate", (m.rows, 1), "f32") if gate else None
    number = kernel.input("live", (1,), "i32") if live else None
    out = kernel.output("out", (m.rows, m.hidden), "f32")

    def write(row: Value) -> None:
        first, *others = (weights.load([row, i]).broadcast() for i in range(k))
        share = None
        if gates is not None:
            opened = exp(-gates.load([row, 0]).broadcast()) + 1.0
            share = kernel.code.constant(1.0, Type("f32", LANES)) / opened
        pair = row * k

        def some(column: Value) -> None:
            total = x.load_vector([pair, column]) * first
            for i, weight in enumerate(others, start=1):
                total = fma(x.load_vector([pair + i, column]), weight, total)
            if every is not None:
                added = every.load_vector([row, column])
                total = total + added if share is None else fma(added, share, total)
            out.store(total, [row, column])

        kernel.code.repeat(0, m.hidden, some, LANES)

    groups.write(kernel, number, write)
    return kernel.function()
