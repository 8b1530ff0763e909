"""Into what blocks the rows of a product are cut: the rows of a block are multiplied by a tile of weights together.

A graph has as many rows as may come; those that are there, the *live* ones, are its first. A product computes these in
blocks of one height, as few as its registers allow, and has a body of code for every height that it may need. The last
block begins before the one in front of it ends where it would reach beyond the live rows: what is computed twice is the
same both times.
"""

from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code, Value

SHARE = 8
"""A block has at most one row in so many that is computed for nobody: fewer bodies to compile, and still no step in the
cost that is larger than this."""


def live_rows(code: Code, live: Value, rows: int) -> str:
    """How many of a graph's `rows` are live, as an index: int32 [1] says so, and no more than there are."""
    return code.least(code.extract_index(live, [code.index(0)]), code.index(rows))


@dataclass(frozen=True, slots=True)
class Heights:
    """The heights of a graph's blocks."""

    rows: int
    """Of the graph."""
    tallest: int
    """What registers hold."""

    def height(self, live: int) -> int:
        """Of the blocks of so many live rows."""
        even = -(-live // -(-live // self.tallest))
        step = max(1, even // SHARE)
        return min(-(-even // step) * step, self.tallest, self.rows)

    @property
    def limits(self) -> tuple[tuple[int, int], ...]:
        """(rows, height): each height is for so many live rows and fewer, down to the limit before.

        As many as the next smaller power of two have a graph of their own as soon as it is compiled: until then they
        take one of the heights that more rows need.
        """
        limits: list[tuple[int, int]] = []
        for live in range((1 << (self.rows - 1).bit_length() - 1) + 1, self.rows + 1):
            if limits and limits[-1][1] == self.height(live):
                limits.pop()
            limits.append((live, self.height(live)))
        return tuple(limits)

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(sorted({height for _, height in self.limits}))

    def blocks(self, height: int) -> int:
        """Of this height that there are at least, where all rows but those of a smaller graph are live."""
        return min(-(-limit // height) for limit, its in self.limits if its == height)

    def choose(self, code: Code, live: Value, blocks: Callable[[int, str, str], None]) -> None:
        """Write `blocks` for every height, with the end of the blocks and the first row of the last one; one is run.

        `live` is as `live_rows` has it.
        """
        count = live_rows(code, live, self.rows)
        *limits, (_, last) = self.limits
        chosen = code.index(last)
        for limit, height in reversed(limits):
            within = code.let(f"arith.cmpi ule, {count}, {code.index(limit)} : index")
            chosen = code.let(f"arith.select {within}, {code.index(height)}, {chosen} : index")

        def body(height: int) -> Callable[[], None]:
            def run() -> None:
                end = code.most(count, code.index(height))
                blocks(height, end, code.let(f"arith.subi {end}, {code.index(height)} : index"))

            return run

        first, *others = self.all
        code.switch(chosen, {height: body(height) for height in others}, body(first))
