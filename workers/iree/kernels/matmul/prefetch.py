"""How weights are fetched before they are needed (docs/adr/0024)."""

from collections.abc import Callable, Sequence

from workers.iree.kernels.ir.memory import L1, L1_ONCE, L2, Memory
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, INDEX, size_of
from workers.iree.kernels.ir.value import Value, constant

AHEAD = 3072
"""Bytes of each tile that are on their way to L1 while it is summed. The CPU itself looks ahead no further than a
page's end, and what it fetches alone does not come in time where several rows keep its arithmetic busy."""
FEW = 4
"""Rows so few that a product waits for nothing but memory. Its weights are fetched in two steps, for more lines can be
waited for before L2 than before L1."""
FAR = 4096
"""Bytes that are on their way to L2 then."""
NEAR = 1024
"""Bytes that are on their way to L1 then, as lines that are read once: those of the rows stay."""
SHARING = 2
"""Blocks of rows that fetch the next set of tiles between them."""

Fetch = Callable[[Sequence[Value], Value, int], None]
"""Writes the prefetches of weights while some tiles are read from an element on, so many elements of each."""


def straight(w: Memory, span: int, rows: int) -> Fetch:
    """Fetch what one block of rows will read of each of the tiles, rows of `w` of two bytes or four; beyond a tile's
    end, the tile `span` further on."""
    length, size = w.shape[-1], size_of(w.element)

    def fetch(tiles: Sequence[Value], at: Value, count: int) -> None:
        for distance, cache in ((FAR, L2), (NEAR, L1_ONCE)) if rows <= FEW else ((AHEAD, L1),):
            soon = at + distance // size
            start = soon + (soon >= length).select(constant(w.code, (span - 1) * length, INDEX), 0)
            for line in range(0, count, CACHE_LINE // size):
                for tile in tiles:
                    w.prefetch([tile, start + line], cache)

    return fetch


def shared(w: Memory, following: Value, block: Value) -> Fetch:
    """Fetch, for one of several blocks of rows that are multiplied by the same tiles, its part of the tiles that are
    `following` further on, to L2. Memory would rest while the later blocks read what the first has fetched."""
    part, size = w.shape[-1] // SHARING, size_of(w.element)

    def fetch(tiles: Sequence[Value], at: Value, count: int) -> None:
        start = block * part + at // SHARING
        for tile in tiles:
            after = tile + following
            for line in range(0, count // SHARING, CACHE_LINE // size):
                w.prefetch([after, start + line], L2)

    return fetch


def both(one: Fetch, other: Fetch) -> Fetch:
    """Fetch as one, then as the other."""

    def fetch(tiles: Sequence[Value], at: Value, count: int) -> None:
        one(tiles, at, count)
        other(tiles, at, count)

    return fetch
