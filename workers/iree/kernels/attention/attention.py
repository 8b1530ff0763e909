"""Attention over the packed KV cache, in blocks of positions that begin at the same places for all rows.

A row's KV blocks are summed each by itself and merged in rising order. One that a row may not see changes nothing in
it. So a row's result depends on its own positions alone, whatever rows are computed beside it, and whichever thread
sums a block.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.attention.kv_block import SPAN, Block, Row, Tiling
from workers.iree.kernels.attention.online_softmax import Softened
from workers.iree.kernels.attention.shape import Heads
from workers.iree.kernels.ir.arithmetic import Arithmetic, stride
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import PARTITIONS_PER_THREAD, Partition
from workers.iree.kernels.ir.value import Value

POSITIONS = 64
"""The rows of the cache are a multiple of it: no more are read at once."""
BLOCKS = 8
"""The most blocks of rows that attend to a KV block before the next one: their partial results stay in L1."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one layer; all layers with the same window share its code."""

    heads: Heads
    arithmetic: Arithmetic
    window: int = 0
    """Positions that a row sees, the last ones up to its own; 0 is all of them."""
    cap: float = 0.0
    """Scores s become cap * tanh(s / cap) where it is not 0."""
    threads: int = 1

    @property
    def split(self) -> bool:
        """Whether threads share the context of a row: a single row's heads would leave some of them idle."""
        return self.heads.tokens == 1 and self.heads.heads % self.threads != 0

    @property
    def tiling(self) -> Tiling:
        return Tiling.of(self.heads, self.arithmetic)

    @property
    def blocks(self) -> int:
        """Blocks of rows of a sequence and head."""
        return -(-self.heads.tokens * self.heads.group // self.tiling.rows)

    @property
    def together(self) -> int:
        """Blocks of an item: fewer than all where there would be less work than threads."""
        items = self.heads.heads * self.heads.batch
        return min(BLOCKS, -(-self.blocks // min(self.blocks, -(-2 * self.threads // items))))

    @property
    def spans(self) -> int:
        """KV blocks that a slot may have."""
        return -(-self.heads.capacity // SPAN)

    @property
    def sums_shape(self) -> tuple[int, int, int]:
        """What threads that share a context leave of each row and KV block."""
        return (self.heads.batch * self.heads.queries, self.spans, Softened.width(self.heads.head_dim))

    def whole(self, name: str) -> str:
        """softmax(q k^T) v: packed words [batch * tokens, queries * head_dim / per_word] of scaled queries, slots int32
        [batch], rows int32 [batch, tokens], the layer and their number int32 [2], cache -> packed words
        [batch * tokens, stride] of width queries * head_dim.

        A row sees the cache's rows up to its own. Weights are summed as they were rounded for the weighted sum.
        """
        d = Kernel(name, self.whole_partitions)
        cached = Cached.taken(self, d)
        rows, width = self.heads.batch * self.heads.tokens, self.heads.queries * self.heads.head_dim
        out = d.give((rows, stride(width, self.arithmetic)), "i32")
        self.add_whole(d.code, d.partition, cached, out, self.room(d.code))
        return d.function()

    @property
    def whole_partitions(self) -> int:
        """Into how many partitions the work of `whole` is divided."""
        return min(self._items, PARTITIONS_PER_THREAD * self.threads)

    @property
    def _parts(self) -> int:
        """Items of a sequence and head."""
        return -(-self.blocks // self.together)

    @property
    def _items(self) -> int:
        return self.heads.heads * self.heads.batch * self._parts

    def room(self, code: Code) -> Memory:
        """Allocate the partial results of `add_whole`."""
        return code.allocate((self.together * self.tiling.rows, Softened.width(self.heads.head_dim)), "f32")

    def add_whole(
        self, code: Code, partition: Partition, cached: "Cached", out: Memory, state: Memory, live: Value | None = None
    ) -> None:
        """Write a partition of `whole`, for the first `live` sequences where an index says how many."""
        parts, body = self._parts, _Body(self, code, cached)
        batch = live or code.index(self.heads.batch)
        low, high = partition.even_range(batch * (self.heads.heads * parts))
        last = high - 1

        def one(item: Value) -> None:
            # Neighbours are of one head: in a prompt they share what is read.
            (each, part), (after, _) = ((at // parts, at % parts) for at in (item, (item + 1).minimum(last)))
            head, sequence = each // batch, each % batch
            following = body.begin(0, after % batch, after // batch)
            body.item(head, sequence, part * self.together, state, following)
            body.each_block(lambda block: body.finish(head, sequence, part, block, state, out))

        code.repeat(low, high, one)

    def shared(self, name: str) -> str:
        """Like `whole`, each KV block by itself -> float32 `sums_shape`; blocks that no row sees are left out."""
        d = Kernel(name, self.shared_partitions)
        cached, out = Cached.taken(self, d), d.give(self.sums_shape, "f32")
        self.add_shared(d.code, d.partition, cached, out)
        return d.function()

    @property
    def shared_partitions(self) -> int:
        return PARTITIONS_PER_THREAD * self.threads

    def add_shared(
        self, code: Code, partition: Partition, cached: "Cached", out: Memory, live: Value | None = None
    ) -> None:
        """Write a partition of `shared`, as `add_whole` does."""
        h, body = self.heads, _Body(self, code, cached)
        batch = live or code.index(h.batch)

        def spans(sequence: Value) -> tuple[Value, Value]:
            """The first KV block of a sequence, and how many it has."""
            first, last = body.reach(sequence)
            first = first // SPAN
            return first, last // SPAN - first + 1

        def count(sequence: Value, total: list[Value]) -> list[Value]:
            return [total[0] + spans(sequence)[1] * h.heads]

        (total,) = code.loop(0, batch, [code.index(0)], count)
        low, high = partition.even_range(total)

        def each(sequence: Value, before: list[Value]) -> list[Value]:
            first, number = spans(sequence)
            end = before[0] + number * h.heads
            mine = end.minimum(high)

            def one(unit: Value) -> None:
                place = unit - before[0]
                next_place = (place + 1).minimum(mine - before[0] - 1)
                head, span = place // number, place % number + first
                next_head = next_place // number
                soon = body.begin(0, sequence, next_head) + (next_place % number + first) * (SPAN * h.head_dim)
                body.span(head, sequence, span, soon, out)

            code.repeat(before[0].maximum(low), mine, one)
            return [end]

        code.loop(0, batch, [code.index(0)], each)

    def joined(self, name: str) -> str:
        """What `shared` left, and rows int32 [batch, 1] -> what `whole` gives, bitwise identical."""
        h, d = self.heads, Kernel(name, self.joined_partitions)
        sums, at = d.take(self.sums_shape, "f32"), d.take((h.batch, h.tokens), "i32")
        out = d.give((h.batch, stride(h.queries * h.head_dim, self.arithmetic)), "i32")
        self.add_joined(d.code, d.partition, sums, at, out)
        return d.function()

    @property
    def joined_partitions(self) -> int:
        return min(self.sums_shape[0], PARTITIONS_PER_THREAD * self.threads)

    def add_joined(
        self, code: Code, partition: Partition, sums: Memory, at: Memory, out: Memory, live: Value | None = None
    ) -> None:
        """Write a partition of `joined`, as `add_whole` does."""
        h = self.heads
        low, high = partition.even_range((live or code.index(h.batch)) * h.queries)

        def one(row: Value) -> None:
            sequence = row // h.queries
            first, last = _reach(self, code, at, sequence)

            def merge(span: Value, state: list[Value]) -> list[Value]:
                added = Softened.read(sums, [row, span])
                return Softened.of(state).join(added).flat()

            start = Softened.empty(code, h.head_dim).flat()
            state = code.loop(first // SPAN, last // SPAN + 1, start, merge)
            words = h.head_dim // self.arithmetic.per_word
            _finish(self, Softened.of(state), out, sequence, row % h.queries * words)

        code.repeat(low, high, one)


@dataclass(frozen=True, slots=True)
class Cached:
    """The memory that attention reads: see `Attention.whole`."""

    queries: Memory
    slots: Memory
    rows: Memory
    layer: Memory
    cache: Memory
    """As one dimension."""

    @classmethod
    def taken(cls, kind: Attention, d: Kernel) -> "Cached":
        """Take the operands of a kernel."""
        h = kind.heads
        return cls(
            d.take((h.batch * h.tokens, h.queries * h.head_dim // kind.arithmetic.per_word), "i32"),
            d.take((h.batch,), "i32"),
            d.take((h.batch, h.tokens), "i32"),
            d.take((2,), "i32"),
            d.take(h.cache, kind.arithmetic.element, (math.prod(h.cache),)),
        )


class _Body:
    """The code for a KV block, which `whole` and `shared` are made of."""

    def __init__(self, kind: Attention, code: Code, cached: Cached) -> None:
        self._kind, self._code, self._h, self._cached = kind, code, kind.heads, cached
        self._block = Block(
            code, kind.arithmetic, kind.heads, kind.tiling, cached.queries, cached.cache, kind.window, kind.cap
        )

    def begin(self, part: int, sequence: Value, head: Value) -> Value:
        """Return the element of the cache where a sequence's keys (0) or values (1) of a head begin."""
        layer = self._cached.layer.load_index([0])
        return self._h.begin(layer, part, self._cached.slots.load_index([sequence]), head)

    def reach(self, sequence: Value) -> tuple[Value, Value]:
        return _reach(self._kind, self._code, self._cached.rows, sequence)

    def each_block(self, body: Callable[[Value], None]) -> None:
        """Call `body` for the blocks of rows of an item."""
        code, count = self._code, self._kind.together
        if count == 1:
            body(code.index(0))
        else:
            code.repeat(0, count, body)

    def item(self, head: Value, sequence: Value, first_block: Value, state: Memory, following: Value) -> None:
        """Leave the softmax of an item's rows in `state`. The next item's keys begin at `following`."""
        code, h = self._code, self._h
        empty = Softened.empty(code, h.head_dim)
        code.repeat(0, state.shape[0], lambda row: empty.write(state, [row]))
        keys, values = (self.begin(part, sequence, head) for part in (0, 1))
        first, last = self.reach(sequence)

        def span(start: Value) -> None:
            after = start + SPAN
            soon = (after <= last).select(keys + after * h.head_dim, following)
            low, high = self._seen(start, first, last)

            def block(number: Value) -> None:
                rows = self._rows(first_block + number, head, sequence)
                sums = self._block.attend(rows, keys, values, low, high, soon)
                for i, added in enumerate(sums):
                    place = [number * len(rows) + i]
                    Softened.read(state, place).join(added).write(state, place)

            self.each_block(block)

        code.repeat(first // SPAN * SPAN, last + 1, span, SPAN)

    def finish(self, head: Value, sequence: Value, part: Value, block: Value, state: Memory, out: Memory) -> None:
        """Store the results of the rows of an item's block from `state`."""
        rows = self._rows(part * self._kind.together + block, head, sequence)
        for i, row in enumerate(rows):
            done = Softened.read(state, [block * len(rows) + i])
            _finish(self._kind, done, out, row.token, row.column)

    def span(self, head: Value, sequence: Value, number: Value, soon: Value, out: Memory) -> None:
        """Store the softmax of one KV block and a sequence's rows in `Attention.sums_shape`."""
        code, kind, h = self._code, self._kind, self._h
        keys, values = (self.begin(part, sequence, head) for part in (0, 1))
        low, high = self._seen(number * SPAN, *self.reach(sequence))
        words = h.head_dim // kind.arithmetic.per_word
        for block in range(kind.blocks):
            rows = self._rows(code.index(block), head, sequence)
            for row, added in zip(rows, self._block.attend(rows, keys, values, low, high, soon), strict=True):
                added.write(out, [sequence * h.queries + row.column // words, number])

    def _seen(self, start: Value, first: Value, last: Value) -> tuple[Value, Value]:
        """Return the part of a KV block with what rows see from `first` to `last`, in whole steps."""
        step = self._kind.tiling.step
        low = start.maximum(first // step * step)
        high = (last + step) // step * step
        return low, (start + SPAN).minimum(high)

    def _rows(self, block: Value, head: Value, sequence: Value) -> list[Row]:
        """Return a block's rows; where some are missing, the last one is computed again in their place."""
        h, kind = self._h, self._kind
        words, rows = h.head_dim // kind.arithmetic.per_word, []
        for i in range(kind.tiling.rows):
            number = (block * kind.tiling.rows + i).minimum(h.tokens * h.group - 1)
            token = number // h.group
            query = head * h.group + number % h.group
            last = _sees(kind, self._cached.rows, sequence, token)
            rows.append(Row(sequence * h.tokens + token, query * words, last))
        return rows


def _sees(kind: Attention, at: Memory, sequence: Value, token: Index) -> Value:
    """Return the last position that a token sees. A padding token sees what its sequence's first one does, so that a
    window reaches no further back for it, and one position where that is padding as well."""

    def real(token: Index, other: Value | int) -> Value:
        row = at.load_index([sequence, token])
        return (row < kind.heads.attended).select(row, other)

    return real(token, 0 if kind.heads.tokens == 1 else real(0, 0))


def _reach(kind: Attention, code: Code, at: Memory, sequence: Value) -> tuple[Value, Value]:
    """Return the first and the last position that any of a sequence's tokens sees."""

    def widen(token: Value, state: list[Value]) -> list[Value]:
        last = _sees(kind, at, sequence, token)
        return [state[0].minimum(last), state[1].maximum(last)]

    start = _sees(kind, at, sequence, 0)
    first, last = code.loop(0, kind.heads.tokens, [start, start], widen)
    if not kind.window:
        return code.index(0), last
    before = kind.window - 1
    return first.maximum(before) - before, last


def _finish(kind: Attention, done: Softened, out: Memory, token: Value, column: Value) -> None:
    """Store a row's weighted means, from packed word `column` of a token on."""
    arithmetic = kind.arithmetic
    mass, words = done.mass.sum_lanes().broadcast(), LANES // arithmetic.per_word
    for i, part in enumerate(done.sums):
        mean = part / mass
        out.store(arithmetic.pack(mean), [token, column + i * words])
