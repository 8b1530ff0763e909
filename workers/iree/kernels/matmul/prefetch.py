"""How weights are fetched before they are needed (docs/adr/0024)."""

from collections.abc import Callable, Sequence

from workers.iree.kernels.ir.builder import LINE, SIZES, Code, Value

AHEAD = 3072
"""Bytes of each tile that are on their way to the first cache while it is summed. The CPU itself looks ahead no further
than a page's end, and what it fetches alone does not come in time where several rows keep its arithmetic busy."""
FEW = 4
"""Rows so few that a product waits for nothing but memory. Its weights are fetched in two steps, for more lines can be
waited for before the second cache than before the first."""
FAR = 4096
"""Bytes that are on their way to the second cache then,"""
NEAR = 1024
"""and to the first, as lines that are read once: those of the rows stay."""
SHARING = 2
"""Blocks of rows that fetch the next set of tiles between them."""

Fetch = Callable[[Sequence[str], str, int], None]
"""Write what fetches weights while some tiles are read from an element on, so many elements of each."""


def straight(code: Code, w: Value, span: int, rows: int) -> Fetch:
    """For one block of rows: what will be read of each of the tiles, rows of `w` of two bytes or four; where that is
    beyond a tile's end, of the tile `span` further on."""
    length, size = w.shape[-1], SIZES[w.element]

    def fetch(tiles: Sequence[str], at: str, count: int) -> None:
        for distance, locality in ((FAR, 2), (NEAR, 0)) if rows <= FEW else ((AHEAD, 3),):
            soon = code.add(at, distance // size)
            beyond = code.let(f"arith.cmpi uge, {soon}, {code.index(length)} : index")
            skipped = code.let(f"arith.select {beyond}, {code.index((span - 1) * length)}, {code.index(0)} : index")
            start = code.add(soon, skipped)
            for line in range(0, count, LINE // size):
                for tile in tiles:
                    code.prefetch(w, [tile, code.add(start, line)], locality)

    return fetch


def shared(code: Code, w: Value, following: str, block: str) -> Fetch:
    """For one of several blocks of rows that are multiplied by the same tiles: its part of those that are `following`
    further on, to the second cache. Memory would rest while the later blocks read what the first has fetched."""
    part, size = w.shape[-1] // SHARING, SIZES[w.element]

    def fetch(tiles: Sequence[str], at: str, count: int) -> None:
        start = code.add(code.mul(block, part), code.div(at, SHARING))
        for tile in tiles:
            after = code.add(tile, following)
            for line in range(0, count // SHARING, LINE // size):
                code.prefetch(w, [after, code.add(start, line)], 2)

    return fetch


def both(one: Fetch, other: Fetch) -> Fetch:
    """One, then the other."""

    def fetch(tiles: Sequence[str], at: str, count: int) -> None:
        one(tiles, at, count)
        other(tiles, at, count)

    return fetch
