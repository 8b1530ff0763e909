"""Attention over the packed cache, in spans of positions that begin at the same places for all.

A row's spans are summed each by itself and joined in rising order. One that a row may not see changes nothing in it.
So a row's result depends on its own positions alone, whatever rows are computed beside it, and whoever sums a span.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.attention.kv_block import SPAN, Block, Row, Tiling
from workers.iree.kernels.attention.online_softmax import Softened
from workers.iree.kernels.attention.shape import Heads
from workers.iree.kernels.ir.arithmetic import Arithmetic, stride
from workers.iree.kernels.ir.builder import FLOATS, LANES, Code, Value
from workers.iree.kernels.ir.executable import Kernel
from workers.iree.kernels.ir.partition import SHARES, Share, share_of

POSITIONS = 64
"""The cache's rows are a multiple of it: no more are read at once."""
BLOCKS = 8
"""Blocks of rows, at most, that pass by a span before the next span: what they have so far stays in the first cache."""


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
        """Of a sequence and head."""
        return -(-self.heads.tokens * self.heads.group // self.tiling.rows)

    @property
    def together(self) -> int:
        """Blocks of an item: fewer than all where there would be less work than threads."""
        items = self.heads.heads * self.heads.batch
        return min(BLOCKS, -(-self.blocks // min(self.blocks, -(-2 * self.threads // items))))

    @property
    def spans(self) -> int:
        """That a slot may have."""
        return -(-self.heads.capacity // SPAN)

    @property
    def sums_shape(self) -> tuple[int, int, int]:
        """What threads that share a context leave of each row and span."""
        return (self.heads.batch * self.heads.queries, self.spans, Softened.width(self.heads.head_dim))

    def whole(self, name: str) -> str:
        """softmax(q k^T) v: words [batch * tokens, queries * head_dim / word] of scaled queries, slots int32 [batch],
        rows int32 [batch, tokens], the layer and their number int32 [2], cache -> words [batch * tokens, stride] of
        width queries * head_dim.

        A row sees the cache's rows up to its own. Weights are summed as they were rounded for the weighted sum.
        """
        d = Kernel(name, self.whole_shares)
        cached = Cached.taken(self, d)
        out = d.give(
            (self.heads.batch * self.heads.tokens, stride(self.heads.queries * self.heads.head_dim, self.arithmetic)),
            "i32",
        )
        self.add_whole(d.code, Share(d.workgroup(), d.workgroups), cached, out, self.room(d.code))
        return d.function()

    @property
    def whole_shares(self) -> int:
        """Into how many shares the work of `whole` is cut."""
        return min(self._items, SHARES * self.threads)

    @property
    def _parts(self) -> int:
        """Of a sequence and head."""
        return -(-self.blocks // self.together)

    @property
    def _items(self) -> int:
        return self.heads.heads * self.heads.batch * self._parts

    def room(self, code: Code) -> Value:
        """What `add_whole` needs for itself."""
        return code.room((self.together * self.tiling.rows, Softened.width(self.heads.head_dim)), "f32")

    def add_whole(
        self, code: Code, share: Share, cached: "Cached", out: Value, state: Value, live: str | None = None
    ) -> None:
        """Write a share of `whole`, for the first `live` sequences where an index says how many."""
        parts, body = self._parts, _Body(self, code, cached)
        batch = live or code.index(self.heads.batch)
        low, high = share_of(code, share, code.mul(batch, self.heads.heads * parts))
        last = code.minus(high, 1)

        def one(item: str) -> None:
            # Neighbours are of one head: in a prompt they share what is read.
            (each, part), (after, _) = (
                (code.div(at, parts), code.rem(at, parts)) for at in (item, code.least(code.add(item, 1), last))
            )
            head, sequence = code.quotient(each, batch), code.remainder(each, batch)
            following = body.begin(0, code.remainder(after, batch), code.quotient(after, batch))
            body.item(head, sequence, code.mul(part, self.together), state, following)
            body.each_block(lambda block: body.finish(head, sequence, part, block, state, out))

        code.repeat(low, high, 1, one)

    def shared(self, name: str) -> str:
        """Like `whole`, each span by itself -> float32 `sums_shape`, of which spans that no row sees are left out."""
        d = Kernel(name, self.shared_shares)
        cached, out = Cached.taken(self, d), d.give(self.sums_shape, "f32")
        self.add_shared(d.code, Share(d.workgroup(), d.workgroups), cached, out)
        return d.function()

    @property
    def shared_shares(self) -> int:
        return SHARES * self.threads

    def add_shared(self, code: Code, share: Share, cached: "Cached", out: Value, live: str | None = None) -> None:
        """Write a share of `shared`, as `add_whole` does."""
        h, body = self.heads, _Body(self, code, cached)
        batch = live or code.index(h.batch)

        def spans(sequence: str) -> tuple[str, str]:
            first, last = body.reach(sequence)
            first = code.div(first, SPAN)
            return first, code.add(code.minus(code.div(last, SPAN), first), 1)

        def count(sequence: str, total: list[str]) -> list[str]:
            return [code.add(total[0], code.mul(spans(sequence)[1], h.heads))]

        zero = code.index(0)
        (total,) = code.loop(zero, batch, 1, [(zero, "index")], count)
        low, high = share_of(code, share, total)

        def each(sequence: str, before: list[str]) -> list[str]:
            first, number = spans(sequence)
            end = code.add(before[0], code.mul(number, h.heads))
            mine = code.least(end, high)

            def one(unit: str) -> None:
                place = code.minus(unit, before[0])
                next_place = code.least(code.add(place, 1), code.minus(code.minus(mine, before[0]), 1))
                head, span = code.quotient(place, number), code.add(code.remainder(place, number), first)
                next_head = code.quotient(next_place, number)
                soon = code.add(
                    body.begin(0, sequence, next_head),
                    code.mul(code.add(code.remainder(next_place, number), first), SPAN * h.head_dim),
                )
                body.span(head, sequence, span, soon, out)

            code.repeat(code.most(before[0], low), mine, 1, one)
            return [end]

        code.loop(zero, batch, 1, [(zero, "index")], each)

    def joined(self, name: str) -> str:
        """What `shared` left, and rows int32 [batch, 1] -> what `whole` gives, to the bit."""
        h, d = self.heads, Kernel(name, self.joined_shares)
        sums, at = d.take(self.sums_shape, "f32"), d.take((h.batch, h.tokens), "i32")
        out = d.give((h.batch, stride(h.queries * h.head_dim, self.arithmetic)), "i32")
        self.add_joined(d.code, Share(d.workgroup(), d.workgroups), sums, at, out)
        return d.function()

    @property
    def joined_shares(self) -> int:
        return min(self.sums_shape[0], SHARES * self.threads)

    def add_joined(self, code: Code, share: Share, sums: Value, at: Value, out: Value, live: str | None = None) -> None:
        """Write a share of `joined`, as `add_whole` does."""
        h = self.heads
        low, high = share_of(code, share, code.mul(live or code.index(h.batch), h.queries))

        def one(row: str) -> None:
            sequence = code.div(row, h.queries)
            first, last = _reach(self, code, at, sequence)

            def turn(span: str, state: list[str]) -> list[str]:
                added = Softened.read(code, sums, [row, span])
                return Softened.of(state).join(code, added).flat()

            start = [(part, FLOATS) for part in Softened.empty(code, h.head_dim).flat()]
            state = code.loop(code.div(first, SPAN), code.add(code.div(last, SPAN), 1), 1, start, turn)
            words = h.head_dim // self.arithmetic.word
            _finish(self, code, Softened.of(state), out, sequence, code.mul(code.rem(row, h.queries), words))

        code.repeat(low, high, 1, one)


@dataclass(frozen=True, slots=True)
class Cached:
    """The memory that attention reads: see `Attention.whole`."""

    queries: Value
    slots: Value
    rows: Value
    layer: Value
    cache: Value
    """As one dimension."""

    @classmethod
    def taken(cls, kind: Attention, d: Kernel) -> "Cached":
        """The operands of a kernel."""
        h = kind.heads
        return cls(
            d.take((h.batch * h.tokens, h.queries * h.head_dim // kind.arithmetic.word), "i32"),
            d.take((h.batch,), "i32"),
            d.take((h.batch, h.tokens), "i32"),
            d.take((2,), "i32"),
            d.take(h.cache, kind.arithmetic.element, (math.prod(h.cache),)),
        )


class _Body:
    """What `whole` and `shared` are made of: the code for a span."""

    def __init__(self, kind: Attention, code: Code, cached: Cached) -> None:
        self._kind, self._code, self._h, self._cached = kind, code, kind.heads, cached
        self._block = Block(
            code, kind.arithmetic, kind.heads, kind.tiling, cached.queries, cached.cache, kind.window, kind.cap
        )

    def begin(self, part: int, sequence: str, head: str) -> str:
        """The element of the cache where a sequence's keys (0) or values (1) of a head begin."""
        code = self._code
        layer = code.extract_index(self._cached.layer, [code.index(0)])
        return self._h.begin(code, layer, part, code.extract_index(self._cached.slots, [sequence]), head)

    def reach(self, sequence: str) -> tuple[str, str]:
        return _reach(self._kind, self._code, self._cached.rows, sequence)

    def each_block(self, body: Callable[[str], None]) -> None:
        """Call `body` for the blocks of an item."""
        code, count = self._code, self._kind.together
        if count == 1:
            body(code.index(0))
        else:
            code.repeat(code.index(0), code.index(count), 1, body)

    def item(self, head: str, sequence: str, first_block: str, state: Value, following: str) -> None:
        """Leave what the rows of an item get in `state`. The next item's keys begin at `following`."""
        code, h = self._code, self._h
        rows = state.shape[0]
        empty = Softened.empty(code, h.head_dim)
        code.repeat(code.index(0), code.index(rows), 1, lambda row: empty.write(code, state, [row]))
        keys, values = (self.begin(part, sequence, head) for part in (0, 1))
        first, last = self.reach(sequence)

        def span(start: str) -> None:
            after = code.add(start, SPAN)
            more = code.let(f"arith.cmpi ule, {after}, {last} : index")
            here = code.add(keys, code.mul(after, h.head_dim))
            soon = code.let(f"arith.select {more}, {here}, {following} : index")
            low, high = self._seen(start, first, last)

            def block(number: str) -> None:
                rows = self._rows(code.add(first_block, number), head, sequence)
                sums = self._block.attend(rows, keys, values, low, high, soon)
                for i, added in enumerate(sums):
                    place = [code.add(code.mul(number, len(rows)), i)]
                    Softened.read(code, state, place).join(code, added).write(code, state, place)

            self.each_block(block)

        code.repeat(code.mul(code.div(first, SPAN), SPAN), code.add(last, 1), SPAN, span)

    def finish(self, head: str, sequence: str, part: str, block: str, state: Value, out: Value) -> None:
        """Put the rows of an item's block from `state` to the results."""
        code, kind = self._code, self._kind
        rows = self._rows(code.add(code.mul(part, kind.together), block), head, sequence)
        for i, row in enumerate(rows):
            done = Softened.read(code, state, [code.add(code.mul(block, len(rows)), i)])
            _finish(kind, code, done, out, row.token, row.column)

    def span(self, head: str, sequence: str, number: str, soon: str, out: Value) -> None:
        """Put what one span adds to a sequence's rows to `Attention.sums_shape`."""
        code, kind, h = self._code, self._kind, self._h
        keys, values = (self.begin(part, sequence, head) for part in (0, 1))
        low, high = self._seen(code.mul(number, SPAN), *self.reach(sequence))
        words = h.head_dim // kind.arithmetic.word
        for block in range(kind.blocks):
            rows = self._rows(code.index(block), head, sequence)
            for row, added in zip(rows, self._block.attend(rows, keys, values, low, high, soon), strict=True):
                query = code.add(code.mul(sequence, h.queries), code.div(row.column, words))
                added.write(code, out, [query, number])

    def _seen(self, start: str, first: str, last: str) -> tuple[str, str]:
        """The part of a span with what rows see from `first` to `last`, in whole steps."""
        code, step = self._code, self._kind.tiling.step
        low = code.most(start, code.mul(code.div(first, step), step))
        high = code.mul(code.div(code.add(last, step), step), step)
        return low, code.least(code.add(start, SPAN), high)

    def _rows(self, block: str, head: str, sequence: str) -> list[Row]:
        """A block's rows; where some are missing, the last one is computed again in their place."""
        code, h, kind = self._code, self._h, self._kind
        words, rows = h.head_dim // kind.arithmetic.word, []
        for i in range(kind.tiling.rows):
            number = code.add(code.mul(block, kind.tiling.rows), i)
            number = code.least(number, code.index(h.tokens * h.group - 1))
            token = code.div(number, h.group)
            query = code.add(code.mul(head, h.group), code.rem(number, h.group))
            last = _sees(kind, code, self._cached.rows, sequence, token)
            rows.append(Row(code.add(code.mul(sequence, h.tokens), token), code.mul(query, words), last))
        return rows


def _sees(kind: Attention, code: Code, at: Value, sequence: str, token: str) -> str:
    """The last position that a token sees. One that is nobody's sees what its sequence's first one does, so that a
    window reaches no further back for it, and one position where that is nobody's as well."""

    def real(token: str, other: str) -> str:
        row = code.extract_index(at, [sequence, token])
        here = code.let(f"arith.cmpi ult, {row}, {code.index(kind.heads.attended)} : index")
        return code.let(f"arith.select {here}, {row}, {other} : index")

    nowhere = code.index(0)
    return real(token, nowhere if kind.heads.tokens == 1 else real(code.index(0), nowhere))


def _reach(kind: Attention, code: Code, at: Value, sequence: str) -> tuple[str, str]:
    """The first and the last position that any of a sequence's tokens sees."""

    def turn(token: str, state: list[str]) -> list[str]:
        last = _sees(kind, code, at, sequence, token)
        return [code.least(state[0], last), code.most(state[1], last)]

    start = _sees(kind, code, at, sequence, code.index(0))
    carried = [(start, "index")] * 2
    first, last = code.loop(code.index(0), code.index(kind.heads.tokens), 1, carried, turn)
    if not kind.window:
        return code.index(0), last
    before = code.index(kind.window - 1)
    return code.minus(code.most(first, before), before), last


def _finish(kind: Attention, code: Code, done: Softened, out: Value, token: str, column: str) -> None:
    """Put a row's weighted means to the results, from word `column` of a token on."""
    arithmetic = kind.arithmetic
    mass, words = code.spread(code.sum_lanes(done.mass)), LANES // arithmetic.word
    for i, part in enumerate(done.sums):
        mean = code.let(f"arith.divf {part}, {mass} : {FLOATS}")
        code.put(arithmetic.words(code, mean), words, out, [token, code.add(column, i * words)])
