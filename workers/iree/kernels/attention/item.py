"""The attention of an item, the unit of work that threads take: some query blocks of one sequence and KV head."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from workers.iree.kernels.attention.kv_block import KvBlock, QueryRow
from workers.iree.kernels.attention.online_softmax import SoftmaxState, with_sink
from workers.iree.kernels.attention.row_runs import RowRuns
from workers.iree.kernels.attention.shape import KV_BLOCK, Attention
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.value import Value


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """The memory that attention reads: see `attention`."""

    queries: Memory
    slots: Memory
    rows: Memory
    layer: Memory
    cache: Memory
    """As one dimension."""
    sinks: Memory | None = None
    """The logits of the sinks, f32 [query_heads], if there are any."""
    ranges: Memory | None = None
    """The first and the last position that each token sees, i32 [2, batch, tokens], where `Attention.ranges` is set."""
    own: Memory | None = None
    """The positions of the rows themselves, where `Attention.around` needs them: i32 [batch, tokens]."""

    @classmethod
    def of(cls, kind: Attention, kernel: Kernel) -> "AttentionInputs":
        """Take the operands of a kernel."""
        shape, width = kind.shape, kind.shape.query_heads * kind.shape.head_dim
        return cls(
            kernel.input("queries", (shape.batch * shape.tokens, width // kind.arithmetic.per_word), "i32"),
            kernel.input("slots", (shape.batch,), "i32"),
            kernel.input("rows", (shape.batch, shape.tokens), "i32"),
            kernel.input("layer", (2,), "i32"),
            kernel.input("cache", shape.cache, kind.elements.element, (math.prod(shape.cache),)),
            ranges=kernel.input("ranges", (2, shape.batch, shape.tokens), "i32") if kind.ranges else None,
            own=kernel.input("own", (shape.batch, shape.tokens), "i32") if kind.around else None,
        )


class AttentionItem:
    """Writes the attention of items: some query blocks of one sequence and KV head."""

    def __init__(self, kind: Attention, code: Code, inputs: AttentionInputs) -> None:
        self._kind, self._code, self._shape, self._inputs = kind, code, kind.shape, inputs
        self._block = KvBlock(code, kind, inputs.queries, inputs.cache)
        self.runs = RowRuns(kind, code, inputs.slots, inputs.rows)

    def begin(self, part: int, sequence: Value, head: Value) -> Value:
        """Return the element of the cache where a sequence's keys (part 0) or values (1) of a KV head begin."""
        layer = self._inputs.layer.load_index([0])
        return self._shape.begin(layer, part, self._inputs.slots.load_index([sequence]), head)

    def reach(self, sequence: Value) -> tuple[Value, Value]:
        if self._inputs.ranges is not None:
            return _reach_of_ranges(self._kind, self._code, self._inputs.ranges, sequence)
        if self._inputs.own is None:
            return reach(self._kind, self._code, self._inputs.rows, sequence)
        own = replace(self._kind, window=0)
        low = _last_seen(own, self._inputs.own, sequence, 0)
        _, high = reach(own, self._code, self._inputs.own, sequence)
        _, end = reach(own, self._code, self._inputs.rows, sequence)
        window = self._kind.window
        return low.maximum(window) - window, (high + window).minimum(end)

    def each_block(self, body: Callable[[Value], None]) -> None:
        """Call `body` for the query blocks of an item."""
        code, count = self._code, self._kind.item_blocks
        if count == 1:
            body(code.index(0))
        else:
            code.repeat(0, count, body)

    def reach_of_run(self, sequence: Value, count: Value) -> tuple[Value, Value]:
        """Return the first and the last position that any of `count` rows sees, from a sequence's on."""

        def widen(number: Value, ends: list[Value]) -> list[Value]:
            first, last = self.reach(sequence + number)
            return [ends[0].minimum(first), ends[1].maximum(last)]

        first, last = self._code.loop(1, count, self.reach(sequence), widen)
        return first, last

    def attend(
        self,
        head: Value,
        sequence: Value,
        first_block: Value,
        state: Memory,
        next_keys: Value,
        count: Value | None = None,
    ) -> None:
        """Leave the softmax of an item's rows in `state`; with `count` of the items of a run of so many rows, which
        attend to a KV block one after the other. The next item's keys begin at `next_keys`."""
        code, shape, size = self._code, self._shape, self._kind.item_blocks
        empty, run = SoftmaxState.empty(code, shape.value_dim), code.index(1) if count is None else count
        code.repeat(0, run * (size * self._kind.tiling.rows), lambda row: empty.store(state, [row]))
        keys, values = (self.begin(part, sequence, head) for part in (0, 1))
        first, last = self.reach(sequence) if count is None else self.reach_of_run(sequence, count)

        def kv_block(start: Value) -> None:
            after = start + KV_BLOCK
            soon = (after <= last).select(keys + self._turned(after) * shape.lane_elements[0], next_keys)
            seen = self._seen(start, first, last)
            self._block.begin(keys, values, *seen[:2])

            def row_of_run(number: Value) -> None:
                # As if the row were alone, unless a run shares what is unpacked.
                alone = count is None or self._block.unpacks
                low, high, turns = seen if alone else self._seen(start, *self.reach(sequence + number))

                def query_block(block: Value) -> None:
                    rows = self._rows(first_block + block, head, sequence + number, turns)
                    added = self._block.attend(rows, keys, values, low, high, soon)
                    for i, each in enumerate(added):
                        place = [(number * size + block) * len(rows) + i]
                        SoftmaxState.load(state, place).merge(each).store(state, place)

                self.each_block(query_block)

            if count is None:
                row_of_run(code.index(0))
            else:
                code.repeat(0, count, row_of_run)

        code.repeat(first // KV_BLOCK * KV_BLOCK, last + 1, kv_block, KV_BLOCK)

    def finish(
        self, head: Value, sequence: Value, part: Value, block: Value, state: Memory, out: Memory, place: Value
    ) -> None:
        """Store the results of the rows of an item's query block, which is at `place` in `state`."""
        rows, shape = self._rows(part * self._kind.item_blocks + block, head, sequence), self._shape
        for i, row in enumerate(rows):
            done, column = SoftmaxState.load(state, [place * len(rows) + i]), row.column
            if shape.value_dim != shape.head_dim:
                per_word = self._kind.arithmetic.per_word
                column = column // (shape.head_dim // per_word) * (shape.value_dim // per_word)
            finish_row(self._kind, done, out, row.token, column, self._inputs.sinks)

    def write_partials(self, head: Value, sequence: Value, number: Value, next_keys: Value, out: Memory) -> None:
        """Store the softmax of one KV block for a sequence's rows, as `Attention.partials_shape` has it, if they see
        any of it."""
        first, last = self.reach(sequence)
        sees = (number >= first // KV_BLOCK) & (number <= last // KV_BLOCK)
        self._code.when(sees, lambda: self._write_seen(head, sequence, number, (first, last), next_keys, out))

    def _write_seen(
        self, head: Value, sequence: Value, number: Value, ends: tuple[Value, Value], next_keys: Value, out: Memory
    ) -> None:
        code, kind, shape = self._code, self._kind, self._shape
        keys, values = (self.begin(part, sequence, head) for part in (0, 1))
        low, high, turns = self._seen(number * KV_BLOCK, *ends)
        self._block.begin(keys, values, low, high)
        words = shape.head_dim // kind.arithmetic.per_word
        for block in range(kind.blocks):
            rows = self._rows(code.index(block), head, sequence, turns)
            for row, added in zip(rows, self._block.attend(rows, keys, values, low, high, next_keys), strict=True):
                added.store(out, [sequence * shape.query_heads + row.column // words, ring_block(kind, number)])

    def _turned(self, position: Value) -> Value:
        """Return the place of a position in a slot."""
        return position % self._shape.ring if self._shape.ring else position

    def _seen(self, start: Value, first: Value, last: Value) -> tuple[Value, Value, Value | None]:
        """Return the part of a KV block with what rows see from `first` to `last`, in whole steps. In a ring these are
        places, and the third value is how many positions before them they are."""
        step, ring = self._kind.tiling.step, self._shape.ring
        low = start.maximum(first // step * step)
        high = (last + step) // step * step
        high = (start + KV_BLOCK).minimum(high)
        if not ring:
            return low, high, None
        turns = start // ring * ring
        return low - turns, high - turns, turns

    def _rows(self, block: Value, head: Value, sequence: Value, turns: Value | None = None) -> list[QueryRow]:
        """Return a query block's rows; where some are missing, the last one is computed again in their place. What they
        see ends so many positions earlier as `turns` says."""
        shape, kind = self._shape, self._kind
        words, rows = shape.head_dim // kind.arithmetic.per_word, []
        for i in range(kind.tiling.rows):
            number = (block * kind.tiling.rows + i).minimum(shape.tokens * shape.group - 1)
            token = number // shape.group
            query = head * shape.group + number % shape.group
            first = None
            if (ranges := self._inputs.ranges) is not None:
                first, last = (ranges.load_index([end, sequence, token]) for end in range(2))
            else:
                last = _last_seen(kind, self._inputs.rows, sequence, token)
            if self._inputs.own is not None:
                own = _last_seen(kind, self._inputs.own, sequence, token)
                first = own.maximum(kind.window) - kind.window
                last = (own + kind.window).minimum(last)
            if turns is not None:
                first, last = None if first is None else first - turns, last - turns
            rows.append(QueryRow(sequence * shape.tokens + token, query * words, last, first))
        return rows


def ring_block(kind: Attention, number: Value) -> Value:
    """Return the place of a KV block among those of `Attention.partials_shape`."""
    return number % kind.kv_blocks if kind.shape.ring else number


def _last_seen(kind: Attention, rows: Memory, sequence: Value, token: Index) -> Value:
    """Return the last position that a token sees.

    A padding token sees what its sequence's first one does, so that a window reaches no further back for it, and one
    position where that is padding as well.
    """

    def real(token: Index, other: Index) -> Value:
        row = rows.load_index([sequence, token])
        return (row < kind.shape.attended).select(row, other)

    return real(token, 0 if kind.shape.tokens == 1 else real(0, 0))


def reach(kind: Attention, code: Code, rows: Memory, sequence: Value) -> tuple[Value, Value]:
    """Return the first and the last position that any of a sequence's tokens sees."""

    def widen(token: Value, state: list[Value]) -> list[Value]:
        last = _last_seen(kind, rows, sequence, token)
        return [state[0].minimum(last), state[1].maximum(last)]

    start = _last_seen(kind, rows, sequence, 0)
    first, last = code.loop(0, kind.shape.tokens, [start, start], widen)
    if not kind.window:
        return code.index(0), last
    before = kind.window - 1
    return first.maximum(before) - before, last


def _reach_of_ranges(kind: Attention, code: Code, ranges: Memory, sequence: Value) -> tuple[Value, Value]:
    """Return the first and the last position that any of a sequence's tokens sees."""

    def widen(token: Value, state: list[Value]) -> list[Value]:
        first, last = (ranges.load_index([end, sequence, token]) for end in range(2))
        return [state[0].minimum(first), state[1].maximum(last)]

    start = [ranges.load_index([end, sequence, 0]) for end in range(2)]
    first, last = code.loop(0, kind.shape.tokens, start, widen)
    return first, last


def finish_row(
    kind: Attention, done: SoftmaxState, out: Memory, token: Value, column: Value, sinks: Memory | None = None
) -> None:
    """Store a row's weighted means, from packed word `column` of a token on. A head's sink, of f32 [query_heads], joins
    its softmax last."""
    arithmetic = kind.arithmetic
    words = LANES // arithmetic.per_word
    if sinks is None:
        mass = done.mass.sum_lanes().broadcast()
    else:
        head = column // (kind.shape.head_dim // arithmetic.per_word)
        done = with_sink(done, sinks.load([head]).broadcast())
        mass = done.mass
    for i, part in enumerate(done.sums):
        mean = part / mass
        out.store(arithmetic.pack(mean), [token, column + i * words])
