"""What lies between the projections and attention: head norms, rotary positions, and writing rows to the KV cache."""

import math
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import HeadNorm
from workers.iree.kernels.attention.shape import Heads
from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import fma
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.rowwise.norm import inverse_root_mean_square

TOKENS = 16
"""The most tokens of a workgroup."""


@dataclass(frozen=True, slots=True)
class Place:
    """Norms, rotation and cache writes of the rows of a step."""

    heads: Heads
    arithmetic: Arithmetic
    eps: float
    """Of the norms."""
    normed: HeadNorm | None
    """Their weights are [head_dim] for each head or, of all heads together, [heads * head_dim]."""

    @property
    def per(self) -> int:
        """Tokens of an item."""
        return math.gcd(self.heads.tokens, TOKENS)

    @property
    def items(self) -> int:
        """Items that can be done side by side: a KV head, with its queries, of some tokens."""
        return self.heads.heads * (self.heads.tokens // self.per) * self.heads.batch

    def function(self, name: str) -> str:
        """qkv f32 [batch * tokens, (queries + 2 heads) * head_dim] (, cos and sin f32 [batch * tokens, rotated / 2]),
        slots int32 [batch], rows int32 [batch, tokens], the layer and their number int32 [2] (, weights of the norms
        of queries and keys, flat f32), cache
        -> packed words [batch * tokens, queries * head_dim / per_word] of the queries, scaled, and the cache with keys
        and values.
        """
        d = Kernel(name, self.items)
        placing = Placing(self, d, None, None)
        placing.item(d.workgroup)
        return d.function()


class Placing:
    """The memory that is read and written, and the code for an item."""

    def __init__(self, kind: Place, d: Kernel, qkv: Memory | None, queries: Memory | None) -> None:
        """Takes the operands of `Place.function`, except `qkv` and `queries` where they are given: memory that a
        stage before has written, and one after will read."""
        h = kind.heads
        rows, depth = h.batch * h.tokens, h.head_dim
        self._kind, self._code = kind, d.code
        self._qkv = qkv or d.take((rows, (h.queries + 2 * h.heads) * depth), "f32")
        self._angles = [d.take((rows, h.rotated // 2), "f32") for _ in range(2)] if h.rotated else []
        self.slots, self.rows = d.take((h.batch,), "i32"), d.take((h.batch, h.tokens), "i32")
        self.layer = d.take((2,), "i32")
        self._counts = (h.queries, h.heads) if kind.normed == "all" else (1, 1)
        self._norms = [d.take((count * depth,), "f32") for count in self._counts] if kind.normed else []
        size = h.layers * 2 * h.slots * h.heads * h.capacity * depth
        self.cache = d.change(h.cache, kind.arithmetic.element, (size,))
        self.queries = queries or d.give((rows, h.queries * depth // kind.arithmetic.per_word), "i32")

    def item(self, number: Value) -> None:
        """Process the tokens of an item."""
        code, kind, h = self._code, self._kind, self._kind.heads
        head, rest = number % h.heads, number // h.heads
        blocks = h.tokens // kind.per
        low, sequence = rest % blocks * kind.per, rest // blocks
        layer, slot = self.layer.load_index([0]), self.slots.load_index([sequence])
        keys, values = (h.begin(layer, part, slot, head) for part in range(2))

        def token(index: Value) -> None:
            row = sequence * h.tokens + index
            code.repeat(0, h.group, lambda query: self._query(row, head, query))
            position = self.rows.load_index([sequence, index])
            for value, lane in self._rotated(row, head, 1, None):
                self._put_keys(keys, value, lane, position)
            for lane in range(0, h.head_dim, LANES):
                value = self._qkv.load_vector([row, self._column(head + (h.queries + h.heads), lane)])
                self._put_values(values, value, lane, position)

        code.repeat(low, low + kind.per, token)

    def _query(self, row: Value, head: Value, number: Value) -> None:
        h, arithmetic = self._kind.heads, self._kind.arithmetic
        source = head * h.group + number
        first = source * (h.head_dim // arithmetic.per_word)
        for value, lane in self._rotated(row, source, 0, h.scale):
            words = arithmetic.pack(value)
            self.queries.store(words, [row, first + lane // arithmetic.per_word])

    def _column(self, head: Value, lane: int) -> Value:
        return head * self._kind.heads.head_dim + lane

    def _factor(self, row: Value, source_head: Value, kind: int, lanes: int) -> Value:
        """Return what queries (0) or keys (1) are multiplied by before their norm's weight."""
        code, h = self._code, self._kind.heads
        each = self._kind.normed == "each"
        first = source_head if each else code.index((0, h.queries)[kind])
        count = 1 if each else self._counts[kind]
        width, start = count * h.head_dim, self._column(first, 0)
        lanes_summed = lanes if each else math.gcd(LANES, h.head_dim)
        root = inverse_root_mean_square(code, self._qkv, [row], width, self._kind.eps, lanes_summed, start)
        return root.broadcast(lanes)

    def _rotated(self, row: Value, head: Value, kind: int, scale: float | None) -> list[tuple[Value, int]]:
        """Return vectors, each with its first lane, of query (kind 0) or key (1) head `head`, normed, rotated and
        scaled.

        RoPE rotates pairs made of the halves of a head's rotated lanes (https://arxiv.org/abs/2104.09864).
        """
        h = self._kind.heads
        half, depth = h.rotated // 2, h.head_dim
        lanes, rest = math.gcd(LANES, half or LANES), math.gcd(LANES, depth - h.rotated or LANES)
        source_head = head if kind == 0 else head + h.queries
        # Of the lanes that pass, whose vectors may be of another size.
        sizes = {lanes, rest} if self._norms else ()
        factors = {size: self._factor(row, source_head, kind, size) for size in sizes}

        def read(lane: int, size: int) -> Value:
            value = self._qkv.load_vector([row, self._column(source_head, lane)], size)
            if not self._norms:
                return value
            value = value * factors[size]
            at: Index = self._column(head, lane) if self._kind.normed == "all" else lane
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
        passed = [(scaled(read(lane, rest)), lane) for lane in range(h.rotated, depth, rest)]
        return [*halves[0], *halves[1], *passed]

    def _put_keys(self, keys: Value, value: Value, lane: int, row: Value) -> None:
        """Store neighbouring lanes of one row: each packed word goes to another group of 16 rows."""
        arithmetic, depth = self._kind.arithmetic, self._kind.heads.head_dim
        k, elements = arithmetic.k, arithmetic.round(value)
        tile, inside = row // LANES, row % LANES
        start = keys + tile * (LANES * depth) + inside * k + lane * LANES
        for word in range(value.type.lanes // k):
            part = elements.part(word * k, k)
            self.cache.store(part, [start + word * LANES * k])

    def _put_values(self, values: Value, value: Value, lane: int, row: Value) -> None:
        """Store 16 lanes of one row: each goes to its place among its neighbours' rows."""
        arithmetic, capacity = self._kind.arithmetic, self._kind.heads.capacity
        k, elements = arithmetic.k, arithmetic.round(value)
        word = row // k + lane // LANES * (capacity // k)
        start = values + word * (LANES * k)
        if k == 1:
            self.cache.store(elements, [start])
            return
        start = start + row % k
        for i in range(LANES):
            scalar = elements.lane(i)
            self.cache.store(scalar, [start + i * k])
