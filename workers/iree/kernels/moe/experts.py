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
from workers.iree.kernels.ir.mlir_types import I32, LANES, Type, size_of
from workers.iree.kernels.ir.operations import exp, fma
from workers.iree.kernels.ir.partition import partition_count
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.linear import L2_WEIGHT_BYTES, gemm_tile
from workers.iree.kernels.matmul.prefetch import prefetch_ahead
from workers.iree.kernels.moe.routing import Mixture
from workers.iree.kernels.rowwise.activations import activated
from workers.iree.kernels.rowwise.row_workgroups import RowWorkgroups

MAX_TILES = 4
"""The most tiles of one half that are summed at once."""
READING_PAIRS = 8
"""Reading an expert takes about as long as computing so many more pairs of it."""
PAIR_BLOCKS = (8, 4, 2, 1)
"""Pairs of one expert that are summed at once. The last ones are summed in one block, so that an expert with eight or
fewer is read once: the lowest block that holds them, with the last pair repeated where it holds more."""


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Some tiles of an expert that are multiplied by some of its pairs."""

    expert: Value
    pairs: list[Value]
    first: Value
    """The first tile of outputs."""
    count: int
    ahead: Value
    """Tiles of weights from the first to those that are read next."""


@dataclass(frozen=True, slots=True)
class ExpertPartition:
    """The division of the tiles of all chosen experts among workgroups, in units of `unit` tiles.

    A workgroup has a range of them, from one expert to the next. The ranges become smaller (`Partition.tapered_range`);
    an expert counts as many pairs as it has and `READING_PAIRS`.
    """

    mixture: Mixture
    tiles: int
    """Tiles of outputs of one expert."""
    halves: int
    """Tiles of weights for one of outputs."""
    unit: int
    chunk: int
    """Tiles whose weights L2 holds while one block of pairs after the other is multiplied by them."""
    pair_blocks: list[int]
    """The numbers of pairs that are summed at once: those of `PAIR_BLOCKS` up to the first that holds all pairs that an
    expert can have, which is one of each row."""
    workgroups: int

    @classmethod
    def of(
        cls, m: Mixture, tiles: int, halves: int, tile_bytes: int, threads: int, most: int, max_tiles: int = 1
    ) -> "ExpertPartition":
        """`tile_bytes` are those of a tile of weights, `most` the pairs whose sums registers hold."""
        unit = math.gcd(tiles, max_tiles)
        blocks = [size for size in PAIR_BLOCKS if size <= most and size < 2 * m.rows]
        chunk = tiles
        if m.rows > blocks[0]:
            chunk = min(tiles, max(1, L2_WEIGHT_BYTES // (unit * halves * tile_bytes)) * unit)
        return cls(m, tiles, halves, unit, chunk, blocks, partition_count(m.groups * tiles // unit, threads))

    def max_tiles(self, accumulators: int) -> Callable[[int], int]:
        """Return a function of the number of pairs: how many tiles to sum at once with so many accumulators."""
        return lambda pairs: max(1, math.gcd(self.unit, accumulators // pairs))

    def each_tile(
        self,
        kernel: Kernel,
        lists: Sequence[Memory],
        max_tiles: Callable[[int], int],
        write: Callable[[ExpertTiles], None],
    ) -> None:
        """Call `write` for a workgroup's range and all pairs. `lists` is what `routing.group` gives."""
        code, (order, chosen, starts) = kernel.code, lists
        units, groups = self.tiles // self.unit, self.mixture.groups

        def count(which: Value, counted: list[Value]) -> list[Value]:
            size = starts.load([which + 1]) - starts.load([which])
            return [counted[0] + size.minimum(1, signed=True)]

        (experts,) = code.loop(0, groups, [code.constant(0, I32)], count)
        total = experts.astype("index", signed=True) * READING_PAIRS + starts.load_index([groups])
        low, high = kernel.partition.tapered_range(total * units)

        def of_expert(which: Value) -> None:
            begin, end = (starts.load_index([which + i]) for i in range(2))
            before, weight = (which * READING_PAIRS + begin) * units, end - begin + READING_PAIRS
            first, last = (
                ((each.maximum(before) - before + (weight - 1)) // weight).minimum(units) * self.unit
                for each in (low, high)
            )
            expert = chosen.load_index([which])
            beyond = (chosen.load_index([which + 1]) - expert) * (self.halves * self.tiles)

            def block(tiles: tuple[Value, Value], at: Value, size: int) -> None:
                pairs = [order.load_index([(at + i).minimum(end - 1)]) for i in range(size)]
                some = max_tiles(size)

                def group(first: Value) -> None:
                    ahead = (first + some >= self.tiles).select(beyond - first, some)
                    write(ExpertTiles(expert, pairs, first, some, ahead))

                code.repeat(*tiles, group, some)

            def chunk(first: Value) -> None:
                at, tiles = begin, (first, (first + self.chunk).minimum(last))
                for size, lower in zip(self.pair_blocks, [*self.pair_blocks[1:], 0], strict=True):
                    after = at + (end - at + (size - 1 - lower)) // size * size
                    code.repeat(at, after, lambda at, size=size: block(tiles, at, size), size)  # type: ignore[misc]
                    at = after.minimum(end)

            code.repeat(first, last, chunk, self.chunk)

        code.repeat(0, groups, of_expert)


def experts_up(name: str, m: Mixture, arithmetic: Arithmetic, activation: Activation, *, threads: int = 1) -> str:
    """Packed words [rows, row_stride] of width hidden, weights [count * halves * ffn / 16, ...], what `routing.group`
    gives (, biases f32 [count * halves * ffn]) -> the GLU of each pair, or its activation without a gate, packed words
    [pairs, row_stride] of width ffn.
    """
    halves, tiles, words = m.experts.halves, m.up_tiles, LANES // arithmetic.per_word
    most = arithmetic.accumulators // halves
    tile_bytes = m.hidden * LANES * size_of(arithmetic.element)
    partition = ExpertPartition.of(m, tiles, halves, tile_bytes, threads, most, MAX_TILES)
    kernel = Kernel(name, partition.workgroups)
    x = kernel.input("x", (m.rows, row_stride(m.hidden, arithmetic)), "i32")
    w = kernel.input("weight", (halves * tiles * m.experts.count, m.hidden * LANES), arithmetic.element)
    lists, bias = m.take_lists(kernel), m.take_bias(kernel, halves * m.experts.ffn)
    out = kernel.output("out", (m.pairs, row_stride(m.experts.ffn, arithmetic)), "i32")

    def write(part: ExpertTiles) -> None:
        rows = [pair // m.experts.per_token for pair in part.pairs]
        begin = part.expert * (halves * tiles) + part.first
        which = [begin + half * tiles + i for half in range(halves) for i in range(part.count)]
        prefetch = prefetch_ahead(w, part.ahead, len(rows), in_steps=arithmetic.prefetches_in_steps)
        sums = gemm_tile(kernel.code, x, rows, w, which, m.hidden, arithmetic, prefetch)
        for pair, totals in zip(part.pairs, sums, strict=True):
            for i in range(part.count):
                parts = totals[i :: part.count]
                if bias is not None:
                    at = part.expert * (halves * m.experts.ffn) + (part.first + i) * LANES
                    parts = [each + bias.load_vector([at + n * m.experts.ffn]) for n, each in enumerate(parts)]
                column = (part.first + i) * words
                out.store(arithmetic.pack(activated(activation, parts)), [pair, column])

    partition.each_tile(kernel, lists, partition.max_tiles(most), write)
    return kernel.function()


def experts_down(name: str, m: Mixture, arithmetic: Arithmetic, *, threads: int = 1) -> str:
    """Packed words [pairs, row_stride] of width ffn, weights [count * hidden / 16, ...], what `routing.group` gives
    (, biases f32 [count * hidden]) -> f32 [pairs, hidden].
    """
    tiles, inputs, accumulators = m.down_tiles, m.experts.ffn, arithmetic.accumulators
    tile_bytes = inputs * LANES * size_of(arithmetic.element)
    partition = ExpertPartition.of(m, tiles, 1, tile_bytes, threads, accumulators // 2, MAX_TILES)
    kernel = Kernel(name, partition.workgroups)
    x = kernel.input("x", (m.pairs, row_stride(inputs, arithmetic)), "i32")
    w = kernel.input("weight", (tiles * m.experts.count, inputs * LANES), arithmetic.element)
    lists, bias = m.take_lists(kernel), m.take_bias(kernel, m.hidden)
    out = kernel.output("out", (m.pairs, m.hidden), "f32")

    def write(part: ExpertTiles) -> None:
        at = part.expert * tiles + part.first
        which = [at + i for i in range(part.count)]
        prefetch = prefetch_ahead(w, part.ahead, len(part.pairs), in_steps=arithmetic.prefetches_in_steps)
        sums = gemm_tile(kernel.code, x, part.pairs, w, which, inputs, arithmetic, prefetch)
        for pair, totals in zip(part.pairs, sums, strict=True):
            for i, total in enumerate(totals):
                if bias is not None:
                    total = total + bias.load_vector([part.expert * m.hidden + (part.first + i) * LANES])
                out.store(total, [pair, (part.first + i) * LANES])

    partition.each_tile(kernel, lists, partition.max_tiles(accumulators), write)
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
