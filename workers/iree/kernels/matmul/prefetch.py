"""Prefetching of weights before they are needed (docs/adr/0024). `bench/engine.py` measures a change."""

from collections.abc import Callable, Sequence

from workers.iree.kernels.ir.memory import L1, L1_ONCE, L2, Index, Memory
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, INDEX, size_of
from workers.iree.kernels.ir.value import Value, constant

FEW_ROWS = 4
"""Up to this many rows a matmul is bound by memory. Its weights are then prefetched to L2 first and to L1 shortly
before their use: L2 can have more lines in flight than L1."""
DISTANCES_BYTES = ((3072, L1),)
"""The distance ahead of its use at which each tile is prefetched, and the cache. The CPU's own prefetcher stops at the
end of a page, and is late when several rows keep the arithmetic units busy."""
FEW_ROWS_DISTANCES_BYTES = ((4096, L2), (1024, L1_ONCE))
"""The same for few rows. Weights are read once; the rows stay in L1."""
SHARING_BLOCKS = 2
"""Row blocks that divide the prefetching of the next group of tiles."""

Prefetch = Callable[[Sequence[Value], Value, int], None]
"""Writes the prefetches for a loop step that reads `count` elements of each of some tiles, from an element on."""


def prefetch_ahead(w: Memory, tiles_ahead: Index, rows: int, *, in_steps: bool = True) -> Prefetch:
    """Prefetch the tiles of one row block: rows of `w`, whose elements have two or four bytes. At the end of a tile,
    the prefetch continues in the tile of the next group, `tiles_ahead` further on. `in_steps` is for few rows."""
    distances = FEW_ROWS_DISTANCES_BYTES if in_steps and rows <= FEW_ROWS else DISTANCES_BYTES
    length, size = w.shape[-1], size_of(w.element)
    beyond = (tiles_ahead - 1) * length
    jump = beyond if isinstance(beyond, Value) else constant(w.code, beyond, INDEX)

    def prefetch(tiles: Sequence[Value], at: Value, count: int) -> None:
        for distance, cache in distances:
            soon = at + distance // size
            start = soon + (soon >= length).select(jump, 0)
            for line in range(0, count, CACHE_LINE // size):
                for tile in tiles:
                    w.prefetch([tile, start + line], cache)

    return prefetch


def prefetch_next_group(w: Memory, tiles_ahead: Value, block: Value) -> Prefetch:
    """Prefetch to L2 the part of one row block of the tiles that are `tiles_ahead` further on. Several row blocks are
    multiplied by the same tiles: memory would be idle while the later ones reuse what the first one fetched."""
    part, size = w.shape[-1] // SHARING_BLOCKS, size_of(w.element)

    def prefetch(tiles: Sequence[Value], at: Value, count: int) -> None:
        start = block * part + at // SHARING_BLOCKS
        for tile in tiles:
            after = tile + tiles_ahead
            for line in range(0, count // SHARING_BLOCKS, CACHE_LINE // size):
                w.prefetch([after, start + line], L2)

    return prefetch


def prefetch_both(one: Prefetch, other: Prefetch) -> Prefetch:
    """Combine two functions of this kind."""

    def prefetch(tiles: Sequence[Value], at: Value, count: int) -> None:
        one(tiles, at, count)
        other(tiles, at, count)

    return prefetch
