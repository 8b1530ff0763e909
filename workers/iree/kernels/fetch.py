"""How weights are fetched before they are needed (docs/adr/0024)."""

from collections.abc import Sequence

from workers.iree.kernels.code import LINE, SIZES, Code, Value

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


def fetch(code: Code, w: Value, tiles: Sequence[str], span: int, at: str, count: int, rows: int) -> None:
    """Fetch what will be read of each of some tiles, rows of `w` of two bytes or four, after `count` elements from `at`
    on: where that is beyond a tile's end, of the tile `span` further on."""
    length, size = w.shape[-1], SIZES[w.element]
    for distance, locality in ((FAR, 2), (NEAR, 0)) if rows <= FEW else ((AHEAD, 3),):
        soon = code.add(at, distance // size)
        beyond = code.let(f"arith.cmpi uge, {soon}, {code.index(length)} : index")
        skipped = code.let(f"arith.select {beyond}, {code.index((span - 1) * length)}, {code.index(0)} : index")
        start = code.add(soon, skipped)
        for line in range(0, count, LINE // size):
            for tile in tiles:
                code.prefetch(w, [tile, code.add(start, line)], locality)
