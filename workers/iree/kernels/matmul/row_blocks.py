"""Row blocks of a product: the rows of a block are multiplied by a tile of weights together.

A product computes the live rows of a graph (`live_rows`) in blocks of one height, as few as its registers allow, and
has code for every height that it may need. The last block begins before the end of the one in front of it where it
would reach beyond the live rows: what is computed twice is the same both times. Graphs of many rows have two heights,
and any number of live rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.live_rows import SEQUENCE_ROWS, live_rows
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.value import Value

ROWS_PER_PADDING_ROW = 8
"""A block has at most one padding row in so many: fewer heights to compile, and no step in the cost that is larger."""


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """The heights of a graph's blocks."""

    rows: int
    """Rows of the graph."""
    max_height: int
    """Rows of a block that registers hold."""

    def height(self, live: int) -> int:
        """Return the height of the blocks of so many live rows."""
        even = -(-live // -(-live // self.max_height))
        step = max(1, even // ROWS_PER_PADDING_ROW)
        return min(-(-even // step) * step, self.max_height, self.rows)

    @property
    def limits(self) -> tuple[tuple[int, int], ...]:
        """(rows, height): each height is for so many live rows and fewer, down to the limit before.

        As many rows as the next smaller power of two have a graph of their own as soon as it is compiled; until then
        they take one of the heights that more rows need.
        """
        limits: list[tuple[int, int]] = []
        for live in range((1 << (self.rows - 1).bit_length() - 1) + 1, self.rows + 1):
            if limits and limits[-1][1] == self.height(live):
                limits.pop()
            limits.append((live, self.height(live)))
        return tuple(limits)

    @property
    def heights(self) -> tuple[int, ...]:
        return tuple(sorted({height for _, height in self.limits}))

    def min_blocks(self, height: int) -> int:
        """Return the minimum number of blocks of this height, where all rows but those of a smaller graph are live."""
        return min(-(-limit // height) for limit, its in self.limits if its == height)

    def choose(self, code: Code, live: Memory, blocks: Callable[[int, Value, Value], None]) -> None:
        """Write `blocks` for every height, with the end of the blocks and the first row of the last one; one is run.

        `live` is what `live_rows` reads.
        """
        count = live_rows(live, self.rows)
        *limits, (_, last) = self.limits
        chosen = code.index(last)
        for limit, height in reversed(limits):
            chosen = (count <= limit).select(height, chosen)

        def body(height: int) -> Callable[[], None]:
            def run() -> None:
                end = count.maximum(height)
                blocks(height, end, end - height)

            return run

        first, *others = self.heights
        code.switch(chosen, {height: body(height) for height in others}, body(first))


@dataclass(frozen=True, slots=True)
class ManyRowBlocks:
    """The blocks of any number of live rows: as many of one height as fit, and a lower one for what they leave."""

    height: int

    @property
    def last_height(self) -> int:
        """Return the height of the lower block: what blocks of `height` leave of a multiple of `SEQUENCE_ROWS`, at the
        most. 0 where they leave nothing."""
        return self.height - math.gcd(self.height, SEQUENCE_ROWS)

    def count(self, live: Value) -> Value:
        """Return how many blocks of `height` there are. The last one reaches beyond the live rows where they leave more
        than the lower block takes."""
        return (live - live.minimum(self.last_height) + (self.height - 1)) // self.height

    def first(self, block: Value, live: Value) -> Value:
        """Return the first row of a block of `height`, which has no row beyond the live ones unless it is the only
        block."""
        return (block * self.height).minimum(live.maximum(self.height) - self.height)

    def write_last(self, code: Code, live: Value, block: Callable[[Value, int], None]) -> None:
        """Write `block`, from its first row and its height, for the lower block where there is one."""
        height = self.last_height
        if height:
            remaining = self.count(live) * self.height < live
            code.when(remaining, lambda: block(live.maximum(height) - height, height))
