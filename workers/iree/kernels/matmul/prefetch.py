"""Prefetching of weights before they are needed (docs/adr/0024)."""

from collections.abc import Callable, Sequence

from workers.iree.kernels.ir.memory import L1, L1_ONCE, L2, Memory
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, INDEX, size_of
from workers.iree.kernels.ir.value import Value, constant

FEW_ROWS = 4
"""Rows so few that a product waits for nothing but memory. Its weights are fetched in two steps, for more lines can be
waited for before L2 than before L1."""
DISTANCES = ((3072, L1),)
"""Bytes of each tile that are on their way to a cache while the tile is summed. The CPU itself looks ahead no further
than a page's end, and what it prefetches alone does not come in time where several rows keep its arithmetic busy."""
FEW_ROWS_DISTANCES = ((4096, L2), (1024, L1_ONCE))
"""The same for few rows. Lines of weights are read once, and those of the rows stay in L1."""
SHARING_BLOCKS = 2
"""Blocks of rows that prefetch the next group of tiles between them."""

Prefetch = Callable[[Sequence[Value], Value, int], None]
"""Writes the prefetches of weights while some tiles are read from an element on, so many elements of each."""


def prefetch_ahead(w: Memory, group_tiles: int, rows: int) -> Prefetch:
    """Prefetch what one block of rows will read of each of the tiles, rows of `w` of two bytes or four; beyond a tile's
    end, the tile of the next group."""
    length, size = w.shape[-1], size_of(w.element)

    def prefetch(tiles: Sequence[Value], at: Value, count: int) -> None:
        for distance, cache in FEW_ROWS_DISTANCES if rows <= FEW_ROWS else DISTANCES:
            soon = at + distance // size
            start = soon + (soon >= length).select(constant(w.code, (group_tiles - 1) * length, INDEX), 0)
            for line in range(0, count, CACHE_LINE // size):
                for tile in tiles:
                    w.prefetch([tile, start + line], cache)

    return prefetch


def prefetch_next_group(w: Memory, distance: Value, block: Value) -> Prefetch:
    """Prefetch to L2, for one of several blocks of rows that are multiplied by the same tiles, its part of the tiles
    that are `distance` further on. Memory would rest while the later blocks read what the first has fetched."""
    part, size = w.shape[-1] // SHARING_BLOCKS, size_of(w.element)

    def prefetch(tiles: Sequence[Value], at: Value, count: int) -> None:
        start = block * part + at // SHARING_BLOCKS
        for tile in tiles:
            after = tile + distance
            for line in range(0, count // SHARING_BLOCKS, CACHE_LINE // size):
                w.prefetch([after, start + line], L2)

    return prefetch


def prefetch_both(one: Prefetch, other: Prefetch) -> Prefetch:
    """Prefetch as one, then as the other."""

    def prefetch(tiles: Sequence[Value], at: Value, count: int) -> None:
        one(tiles, at, count)
        other(tiles, at, count)

    return prefetch
