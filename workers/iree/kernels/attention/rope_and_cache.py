"""The steps between the projections and attention: head norms, rotary positions, and writing rows to the KV cache."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import HeadNorm
from workers.iree.kernels.attention.kv_elements import QuantizedRow, Scales, kv_elements, pack_pairs
from workers.iree.kernels.attention.shape import AttentionShape
from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import live_rows
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import fma
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.rowwise.norm import inverse_root_mean_square, mean_and_inverse_deviation

MAX_TOKENS = 16
"""The most tokens of an item."""


@dataclass(frozen=True, slots=True)
class RopeAndCache:
    """Head norms, rotation and cache writes of the rows of a step."""

    shape: AttentionShape
    arithmetic: Arithmetic
    eps: float
    """Epsilon of the head norms."""
    head_norm: HeadNorm | None
    """The weights are [head_dim] that heads share ("each"), or [heads * head_dim]: of each head by itself ("own"), or
    of all heads together ("all")."""
    values: int | None = None
    """Lanes of a head that are not padding; None is all of them."""
    centred: bool = False
    """The norm of a head is a LayerNorm."""
    writes: bool = True
    """Keys and values are written. Otherwise there are only queries, of a layer that reads what another one has
    written."""
    value_norm: bool = False
    """The values of a head are normed as well, without a weight."""

    @property
    def item_tokens(self) -> int:
        """Tokens of an item."""
        return math.gcd(self.shape.tokens, MAX_TOKENS)

    @property
    def items(self) -> int:
        """Items that threads may take: a KV head, with its queries, of some tokens."""
        return self.shape.kv_heads * (self.shape.tokens // self.item_tokens) * self.shape.batch


def rope_and_cache(name: str, kind: RopeAndCache, *, live: bool = False) -> str:
    """qkv f32 [batch * tokens, query_heads * head_dim + kv_heads * (head_dim + value_dim)] (, cos and sin f32
    [batch * tokens, rope_dims / 2]), slots int32 [batch], rows int32 [batch, tokens], the layer and their number int32
    [2] (, weights of the norms of queries and keys, flat f32), cache (, live i32 [1])
    -> packed words [batch * tokens, query_heads * head_dim / per_word] of the queries, scaled, and the cache with keys
    and values: those of the first `live` rows. Without `writes` there are only queries, and no cache.
    """
    kernel, shape = Kernel(name, kind.items), kind.shape
    code, number, item = kernel.code, kernel.workgroup, RopeAndCacheItem(kind, kernel, None, None)
    if live:
        count = live_rows(kernel.input("live", (1,), "i32"), shape.batch * shape.tokens)
        code.when(number * kind.item_tokens < count * shape.kv_heads, lambda: item.write(number))
    else:
        item.write(number)
    return kernel.function()


class RopeAndCacheItem:
    """The memory that is read and written, and the code for an item."""

    def __init__(self, kind: RopeAndCache, kernel: Kernel, qkv: Memory | None, queries: Memory | None) -> None:
        """Take the operands of `rope_and_cache`, except `qkv` and `queries` where they are given: memory that the stage
        before writes, and the one after reads."""
        shape = kind.shape
        rows, depth = shape.batch * shape.tokens, shape.head_dim
        self._kind, self._code = kind, kernel.code
        packed = shape.bits == 4 and kind.writes
        self._levels = kernel.code.allocate((max(shape.widths),), "i8") if packed else None
        """A row of levels that are to be packed."""
        self._elements = kv_elements(kind.arithmetic, shape.bits)
        width = shape.qkv_width if kind.writes else shape.query_heads * depth
        self._qkv = qkv or kernel.input("qkv", (rows, width), "f32")
        angles = ("cos", "sin") if shape.rope_dims else ()
        self._angles = [kernel.input(name, (rows, shape.rope_dims // 2), "f32") for name in angles]
        self.slots = kernel.input("slots", (shape.batch,), "i32")
        self.rows = kernel.input("rows", (shape.batch, shape.tokens), "i32")
        self.layer = kernel.input("layer", (2,), "i32")
        every, one = (shape.query_heads, shape.kv_heads), (1, 1)
        self._normed_heads = every if kind.head_norm == "all" else one
        """Heads of queries and of keys that are normed together."""
        weights = one if kind.head_norm == "each" else every
        names = ("q_norm", "k_norm") if kind.writes else ("q_norm",)
        norms = zip(names, weights, strict=False) if kind.head_norm else ()
        self._norms = [kernel.input(name, (count * depth,), "f32") for name, count in norms]
        cache = (shape.cache, self._elements.element, (math.prod(shape.cache),))
        self.cache = kernel.in_place("cache", *cache) if kind.writes else None
        self.queries = queries or kernel.output(
            "queries", (rows, shape.query_heads * depth // kind.arithmetic.per_word), "i32"
        )

    def write(self, number: Value) -> None:
        """Write the tokens of an item."""
        code, kind, shape = self._code, self._kind, self._kind.shape
        head, rest = number % shape.kv_heads, number // shape.kv_heads
        blocks = shape.tokens // kind.item_tokens
        low, sequence = rest % blocks * kind.item_tokens, rest // blocks
        layer, slot = self.layer.load_index([0]), self.slots.load_index([sequence])
        begins = [shape.begin(layer, part, slot, head) for part in range(2)] if kind.writes else []

        def token(index: Value) -> None:
            row = sequence * shape.tokens + index
            code.repeat(0, shape.group, lambda query: self._query(row, head, query))
            if begins:
                position = shape.place(self.rows.load_index([sequence, index]))
                self._write_cache(begins[0], begins[1], row, head, position)

        code.repeat(low, low + kind.item_tokens, token)

    def _write_cache(self, keys: Value, values: Value, row: Value, head: Value, position: Value) -> None:
        """Write the key and the value of a KV head, whose keys and values begin at these elements of the cache."""
        for elements, lane in self._stored(self._rotated(row, head, 1, None), 0, keys, position, self._elements.k):
            self._put_keys(keys, elements, lane, position)
        for elements, lane in self._stored(self._values(row, head), 1, values, position, LANES):
            self._put_values(values, elements, lane, position)

    def _values(self, row: Value, head: Value) -> Iterator[tuple[Value, int]]:
        """Yield vectors of a head's value, each with its first lane, normed if values are."""
        kind, width, factor = self._kind, self._kind.shape.value_dim, None
        if kind.value_norm:
            start, of = self._value_column(head, 0), kind.values
            root = inverse_root_mean_square(self._code, self._qkv, [row], width, kind.eps, LANES, start, of)
            factor = root.broadcast()
        for lane in range(0, width, LANES):
            value = self._qkv.load_vector([row, self._value_column(head, lane)])
            yield value if factor is None else value * factor, lane

    def _value_column(self, head: Value, lane: int) -> Value:
        """Return the place of a lane of a value among those of a row of queries, keys and values."""
        shape = self._kind.shape
        before = shape.query_heads + shape.kv_heads
        if shape.value_dim == shape.head_dim:
            return self._column(head + before, lane)
        return head * shape.value_dim + (before * shape.head_dim + lane)

    def _query(self, row: Value, head: Value, number: Value) -> None:
        shape, arithmetic = self._kind.shape, self._kind.arithmetic
        source = head * shape.group + number
        first = source * (shape.head_dim // arithmetic.per_word)
        for value, lane in self._rotated(row, source, 0, shape.scale):
            words = arithmetic.pack(value)
            self.queries.store(words, [row, first + lane // arithmetic.per_word])

    def _column(self, head: Value, lane: int) -> Value:
        return head * self._kind.shape.head_dim + lane

    def _factor(self, row: Value, source_head: Value, kind: int, lanes: int) -> tuple[Value | None, Value]:
        """Return what is subtracted from queries (0) or keys (1), and what they are multiplied by then, before their
        norm's weight."""
        code, shape = self._code, self._kind.shape
        each = self._kind.head_norm != "all"
        first = source_head if each else code.index((0, shape.query_heads)[kind])
        count = 1 if each else self._normed_heads[kind]
        width, start = count * shape.head_dim, self._column(first, 0)
        lanes_summed = lanes if each else math.gcd(LANES, shape.head_dim)
        values = count * (self._kind.values or shape.head_dim)
        eps, qkv = self._kind.eps, self._qkv
        if self._kind.centred:
            mean, root = mean_and_inverse_deviation(code, qkv, [row], width, eps, lanes_summed, start, values)
            return mean.broadcast(lanes), root.broadcast(lanes)
        root = inverse_root_mean_square(code, qkv, [row], width, eps, lanes_summed, start, values)
        return None, root.broadcast(lanes)

    def _rotated(self, row: Value, head: Value, kind: int, scale: float | None) -> list[tuple[Value, int]]:
        """Return vectors, each with its first lane, of query (kind 0) or key (1) head `head`, normed, rotated and
        scaled.

        RoPE rotates pairs made of the halves of a head's rotated lanes (https://arxiv.org/abs/2104.09864).
        """
        shape = self._kind.shape
        half, depth = shape.rope_dims // 2, shape.head_dim
        lanes, rest = math.gcd(LANES, half or LANES), math.gcd(LANES, depth - shape.rope_dims or LANES)
        source_head = head if kind == 0 else head + shape.query_heads
        # Of the lanes that pass, whose vectors may be of another size.
        sizes = {lanes, rest} if self._norms else ()
        factors = {size: self._factor(row, source_head, kind, size) for size in sizes}

        def read(lane: int, size: int) -> Value:
            value = self._qkv.load_vector([row, self._column(source_head, lane)], size)
            if not self._norms:
                return value
            mean, factor = factors[size]
            value = value * factor if mean is None else (value - mean) * factor
            at: Index = lane if self._kind.head_norm == "each" else self._column(head, lane)
            return value * self._norms[kind].load_vector([at], size)

        def scaled(value: Value) -> Value:
            # Ten digits: of head sizes 24 and 96, float32 has another last bit than of all digits.
            return value if scale is None else value * float(f"{scale:.9e}")

        halves: list[list[tuple[Value, int]]] = [[], []]
        for lane in range(0, half, lanes):
            a, b = read(lane, lanes), read(lane + half, lanes)
            c, s = (angle.load_vector([row, lane], lanes) for angle in self._angles)
            for i, (u, v) in enumerate(((a, b), (b, a))):
                cross = v * s if i else -(v * s)
                halves[i].append((scaled(fma(u, c, cross)), lane + i * half))
        passed = [(scaled(read(lane, rest)), lane) for lane in range(shape.rope_dims, depth, rest)]
        return [*halves[0], *halves[1], *passed]

    def _stored(
        self, values: Iterable[tuple[Value, int]], kind: int, head: Value, row: Value, run: int
    ) -> Iterator[tuple[Value, int]]:
        """Yield the elements of the float32 vectors of a key (kind 0) or value (1), each with its first place in the
        row, of the head that begins at element `head`. The scale of those that are quantized is stored. Of 4 bits, each
        run of so many lanes shares elements with the one behind it."""
        shape = self._kind.shape
        if not shape.bits:
            for value, lane in values:
                yield self._kind.arithmetic.round(value), lane
            return
        row_values, lanes = zip(*values, strict=True)
        quantized = QuantizedRow.of(row_values, shape.bits)
        assert self.cache is not None  # it is written
        Scales(self.cache, shape.levels[kind]).store(quantized.scale, head, row)
        if self._levels is None:
            yield from zip(quantized.levels, lanes, strict=True)
            return
        for levels, lane in zip(quantized.levels, lanes, strict=True):
            self._levels.store(levels, [lane])
        wide = 2 * LANES
        for lane in range(0, shape.widths[kind], wide):
            yield pack_pairs(self._levels.load_vector([lane], wide), run), lane // 2

    def _put_keys(self, keys: Value, elements: Value, lane: int, row: Value) -> None:
        """Store neighbouring lanes of one row: each packed word goes to another group of 16 rows."""
        k, depth = self._elements.k, self._kind.shape.lane_elements[0]
        assert self.cache is not None  # it is written
        tile, inside = row // LANES, row % LANES
        start = keys + tile * (LANES * depth) + inside * k + lane * LANES
        for word in range(elements.type.lanes // k):
            part = elements.part(word * k, k)
            self.cache.store(part, [start + word * LANES * k])

    def _put_values(self, values: Value, elements: Value, lane: int, row: Value) -> None:
        """Store 16 lanes of one row: each goes to its place among its neighbours' rows."""
        k, capacity = self._elements.k, self._kind.shape.capacity
        assert self.cache is not None  # it is written
        word = row // k + lane // LANES * (capacity // k)
        start = values + word * (LANES * k)
        if k == 1:
            self.cache.store(elements, [start])
            return
        start = start + row % k
        for i in range(LANES):
            scalar = elements.lane(i)
            self.cache.store(scalar, [start + i * k])
