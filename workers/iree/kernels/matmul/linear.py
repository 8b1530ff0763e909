"""Linear layers with a packed weight: plain, with a bias, and the gated linear unit (GLU) of an MLP."""

from collections.abc import Callable

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import live_rows
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import Partition
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.prefetch import Prefetch, prefetch_ahead, prefetch_both, prefetch_next_group
from workers.iree.kernels.matmul.tiling import GemmTiling
from workers.iree.kernels.rowwise.activations import gated_unit

L2_WEIGHT_BYTES = 256 << 10
"""Weights that all rows are multiplied by before the next are read: what L2 holds."""

_WriteTiles = Callable[[Value, int, Value, int, Prefetch], None]
"""Writes a tile group for a block of rows: its first tile, how many, the first row, how many, and what to prefetch."""


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
    """Packed words [rows, row_stride], a weight [tiles, inputs / k, 16, k] (, bias f32 [tiles * 16]) (, live i32 [1])
    -> f32 [rows, tiles * 16], of which the first `live` rows are computed.
    """
    tiling = GemmTiling(rows, tiles, inputs, arithmetic, 1, live)
    kernel = Kernel(name, tiling.partitions(threads))
    x = kernel.input("x", (rows, row_stride(inputs, arithmetic)), "i32")
    w = kernel.input("weight", (tiles, inputs * LANES), arithmetic.element)
    offsets = kernel.input("bias", (tiles * LANES,), "f32") if bias else None
    number = kernel.input("live", (1,), "i32") if live else None
    out = kernel.output("out", (rows, tiles * LANES), "f32")
    write_linear(kernel.code, kernel.partition, tiling, x, w, out, offsets, number)
    return kernel.function()


def write_linear(
    code: Code,
    partition: Partition,
    tiling: GemmTiling,
    x: Memory,
    w: Memory,
    out: Memory,
    offsets: Memory | None = None,
    live: Memory | None = None,
) -> None:
    """Write a partition of the work of `linear`."""

    def write(at: Value, group_tiles: int, first: Value, count: int, prefetch: Prefetch) -> None:
        rows, tiles = [first + i for i in range(count)], [at + i for i in range(group_tiles)]
        sums = gemm_tile(code, x, rows, w, tiles, tiling.inputs, tiling.arithmetic, prefetch)
        column = at * LANES
        for row, totals in enumerate(sums):
            for i, total in enumerate(totals):
                if offsets is not None:
                    total = total + offsets.load_vector([column + i * LANES])
                out.store(total, [first + row, column + i * LANES])

    each_tile_group(code, partition, tiling, live, w, write)


def glu_linear(
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
    """act(gate) * up: packed words [rows, row_stride], a weight [2 * tiles, inputs / k, 16, k] (, live i32 [1])
    -> packed words [rows, row_stride], of which the first `live` rows are computed.

    The first half of the weight is the gate's (https://arxiv.org/abs/2002.05202).
    """
    tiling = GemmTiling(rows, tiles, inputs, arithmetic, 2, live)
    kernel = Kernel(name, tiling.partitions(threads))
    x = kernel.input("x", (rows, row_stride(inputs, arithmetic)), "i32")
    w = kernel.input("weight", (2 * tiles, inputs * LANES), arithmetic.element)
    number = kernel.input("live", (1,), "i32") if live else None
    out = kernel.output("out", (rows, row_stride(tiles * LANES, arithmetic)), "i32")
    write_glu_linear(kernel.code, kernel.partition, tiling, x, w, out, activation, number)
    return kernel.function()


def write_glu_linear(
    code: Code,
    partition: Partition,
    tiling: GemmTiling,
    x: Memory,
    w: Memory,
    out: Memory,
    activation: Activation,
    live: Memory | None = None,
) -> None:
    """Write a partition of the work of `glu_linear`."""
    arithmetic, words = tiling.arithmetic, LANES // tiling.arithmetic.per_word

    def write(at: Value, group_tiles: int, first: Value, count: int, prefetch: Prefetch) -> None:
        rows = [first + i for i in range(count)]
        halves = [[at + half + i for i in range(group_tiles)] for half in (0, tiling.tiles)]
        turns = [[*halves[0], *halves[1]]] if tiling.sums_both_halves(count) else halves
        parts = [gemm_tile(code, x, rows, w, each, tiling.inputs, arithmetic, prefetch) for each in turns]
        column = at * words
        for row in range(count):
            totals = [total for part in parts for total in part[row]]
            for i, (gate, up) in enumerate(zip(totals[:group_tiles], totals[group_tiles:], strict=True)):
                product = gated_unit(activation, gate, up)
                at_row, at_column = first + row, column + i * words
                out.store(arithmetic.pack(product), [at_row, at_column])

    each_tile_group(code, partition, tiling, live, w, write)


def each_tile_group(
    code: Code, partition: Partition, tiling: GemmTiling, live: Memory | None, w: Memory, write: _WriteTiles
) -> None:
    """Call `write` for a partition of the tile groups and all rows, or the live ones; the rows in blocks."""
    if live is not None and tiling.few_live:
        _few_rows(code, partition, tiling, live, w, write)
    else:
        count = code.index(tiling.rows) if live is None else live_rows(live, tiling.rows)
        _many_rows(code, partition, tiling, count, w, write)


def _few_rows(
    code: Code, partition: Partition, tiling: GemmTiling, live: Memory, w: Memory, write: _WriteTiles
) -> None:
    """Call `write` for the live rows: all blocks of rows for one tile group, then for the next."""
    in_steps = tiling.arithmetic.prefetches_in_steps

    def blocks(height: int, end: Value, last: Value) -> None:
        tiles, several = tiling.group_tiles(height), tiling.row_blocks.min_blocks(height) > 1
        low, high = partition.tapered_range(tiling.groups(tiles))
        later = partition.tapered_start(tiling.groups(tiles), partition.next())

        def group(number: Value) -> None:
            at, following = tiling.first_tile(number, tiles), number + 1
            following = (following < high).select(following, later)
            distance = tiling.first_tile(following, tiles) - at

            def block(row: Value) -> None:
                prefetch = prefetch_ahead(w, tiles, height, in_steps=in_steps)
                if several:
                    prefetch = prefetch_both(prefetch, prefetch_next_group(w, distance, row // height))
                write(at, tiles, row.minimum(last), height, prefetch)

            code.repeat(0, end, block, height)

        code.repeat(low, high, group)

    tiling.row_blocks.choose(code, live, blocks)


def _many_rows(
    code: Code, partition: Partition, tiling: GemmTiling, count: Value, w: Memory, write: _WriteTiles
) -> None:
    """Call `write` for the first `count` rows: so many tile groups as L2 holds for all blocks of rows, then the next
    ones."""
    blocks = tiling.many_row_blocks
    tiles = tiling.group_tiles(blocks.height)
    groups_in_l2 = max(1, L2_WEIGHT_BYTES // tiling.group_bytes(tiles))

    def block(low: Value, high: Value, first: Value, height: int) -> None:
        prefetch = prefetch_ahead(w, tiles, height, in_steps=tiling.arithmetic.prefetches_in_steps)
        code.repeat(low, high, lambda at: write(tiling.first_tile(at, tiles), tiles, first, height, prefetch))

    def all_blocks(low: Value, high: Value) -> None:
        code.repeat(0, blocks.count(count), lambda at: block(low, high, blocks.first(at, count), blocks.height))
        blocks.write_last(code, count, lambda first, height: block(low, high, first, height))

    low, high = partition.tapered_range(tiling.groups(tiles))
    if tiling.rows > blocks.height:
        code.repeat(low, high, lambda at: all_blocks(at, (at + groups_in_l2).minimum(high)), groups_in_l2)
    else:
        block(low, high, code.index(0), blocks.height)


def gemm_tile(
    code: Code,
    x: Memory,
    rows: list[Value],
    w: Memory,
    tiles: list[Value],
    inputs: int,
    arithmetic: Arithmetic,
    prefetch: Prefetch,
    first_word: Value | None = None,
) -> list[list[Value]]:
    """Return float32 [16] of each of some rows and tiles; the inputs of a row begin at `first_word`, or with it."""
    steps, words = inputs // arithmetic.k, arithmetic.k // arithmetic.per_word
    unroll = next(n for n in (4 // words, 2, 1) if steps % n == 0)
    # Registers: a sum of each row and tile, all parts of each tile, one of a row's words, and what parts are made by.
    roomy = len(tiles) * (len(rows) + words) + 2 <= 2 * arithmetic.accumulators

    def add(at: Value, sums: list[Value]) -> list[Value]:
        sums = list(sums)
        per = LANES * arithmetic.k
        prefetch(tiles, at * per, unroll * per)
        for ahead in range(unroll):
            step = at + ahead
            offset, word = step * per, step * words
            whole = [arithmetic.load(w, [tile, offset]) for tile in tiles] if roomy else []
            for part in range(words):
                right = [parts[part] for parts in whole] or [
                    arithmetic.load_part(w, [tile, offset], part) for tile in tiles
                ]
                column = word + part if first_word is None else first_word + word + part
                for number, row in enumerate(rows):
                    left = arithmetic.broadcast(x.load([row, column]))
                    for i in range(len(tiles)):
                        at_sum = number * len(tiles) + i
                        sums[at_sum] = arithmetic.dot(sums[at_sum], right[i], left)
        return sums

    flat = code.loop(0, steps, [code.floats(0.0)] * (len(rows) * len(tiles)), add, unroll)
    return [flat[row * len(tiles) : (row + 1) * len(tiles)] for row in range(len(rows))]
