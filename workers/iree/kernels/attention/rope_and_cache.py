"""What lies between the projections and attention: head norms, rotary positions, and the rows' place in the cache."""

import math
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import HeadNorm
from workers.iree.kernels.attention.shape import Heads
from workers.iree.kernels.ir.arithmetic import Arithmetic
from workers.iree.kernels.ir.builder import LANES, Code, Value
from workers.iree.kernels.ir.executable import Kernel
from workers.iree.kernels.rowwise.norm import inverse_root_mean_square

TOKENS = 16
"""Tokens of a workgroup."""


@dataclass(frozen=True, slots=True)
class Place:
    """Norms, rotation and writing of the rows of a step."""

    heads: Heads
    arithmetic: Arithmetic
    eps: float
    """Of the norms,"""
    normed: HeadNorm | None
    """whose weights are [head_dim] for each head or, of all heads together, [heads * head_dim]."""

    @property
    def per(self) -> int:
        """Tokens of an item."""
        return math.gcd(self.heads.tokens, TOKENS)

    @property
    def items(self) -> int:
        """What can be done side by side: a KV head, with its queries, of some tokens."""
        return self.heads.heads * (self.heads.tokens // self.per) * self.heads.batch

    def function(self, name: str) -> str:
        """qkv f32 [batch * tokens, (queries + 2 heads) * head_dim] (, cos and sin f32 [batch * tokens, rotated / 2]),
        slots int32 [batch], rows int32 [batch, tokens], the layer and their number int32 [2] (, weights of the norms
        of queries and keys, flat f32), cache
        -> words [batch * tokens, queries * head_dim / word] of the queries, scaled, and the cache with keys and values.
        """
        d = Kernel(name, self.items)
        placing = Placing(self, d, None, None)
        placing.item(d.workgroup())
        return d.function()


class Placing:
    """The memory that is read and written, and the code for an item."""

    def __init__(self, kind: Place, d: Kernel, qkv: Value | None, queries: Value | None) -> None:
        """Takes the operands of `Place.function`, but for `qkv` and `queries` where they are given: memory that a
        phase before has written, and one after will read."""
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
        self.queries = queries or d.give((rows, h.queries * depth // kind.arithmetic.word), "i32")

    def item(self, number: str) -> None:
        """Place the tokens of an item."""
        code, kind, h = self._code, self._kind, self._kind.heads
        head, rest = code.rem(number, h.heads), code.div(number, h.heads)
        blocks = h.tokens // kind.per
        low, sequence = code.mul(code.rem(rest, blocks), kind.per), code.div(rest, blocks)
        layer = code.extract_index(self.layer, [code.index(0)])
        slot = code.extract_index(self.slots, [sequence])
        keys, values = (h.begin(code, layer, part, slot, head) for part in range(2))

        def token(index: str) -> None:
            row = code.add(code.mul(sequence, h.tokens), index)
            code.repeat(code.index(0), code.index(h.group), 1, lambda query: self._query(row, head, query))
            position = code.extract_index(self.rows, [sequence, index])
            for value, lane, lanes in self._turned(row, head, 1, None):
                self._put_keys(keys, value, lane, lanes, position)
            for lane in range(0, h.head_dim, LANES):
                value = code.read(self._qkv, [row, self._column(code.add(head, h.queries + h.heads), lane)])
                self._put_values(values, value, lane, position)

        code.repeat(low, code.add(low, kind.per), 1, token)

    def _query(self, row: str, head: str, number: str) -> None:
        code, h, arithmetic = self._code, self._kind.heads, self._kind.arithmetic
        source = code.add(code.mul(head, h.group), number)
        first = code.mul(source, h.head_dim // arithmetic.word)
        for value, lane, lanes in self._turned(row, source, 0, h.scale):
            words = arithmetic.words(code, value, lanes)
            at = code.add(first, lane // arithmetic.word)
            code.put(words, lanes // arithmetic.word, self.queries, [row, at])

    def _column(self, head: str, lane: int) -> str:
        return self._code.add(self._code.mul(head, self._kind.heads.head_dim), lane)

    def _factor(self, row: str, source_head: str, kind: int, lanes: int) -> str | None:
        """What queries (0) or keys (1) are multiplied by before their norm's weight."""
        code, h = self._code, self._kind.heads
        if self._kind.normed is None:
            return None
        each = self._kind.normed == "each"
        first = source_head if each else code.index((0, h.queries)[kind])
        count = 1 if each else self._counts[kind]
        width, start = count * h.head_dim, self._column(first, 0)
        lanes_summed = lanes if each else math.gcd(LANES, h.head_dim)
        root = inverse_root_mean_square(code, self._qkv, [row], width, self._kind.eps, lanes_summed, start)
        return code.spread(root, lanes=lanes)

    def _turned(self, row: str, head_of: str, kind: int, scale: float | None) -> list[tuple[str, int, int]]:
        """(vector, first lane, lanes) of query or key head `head_of`, normed, rotated and scaled.

        RoPE turns pairs made of the halves of a head's rotated lanes (https://arxiv.org/abs/2104.09864).
        """
        code, h = self._code, self._kind.heads
        half, depth = h.rotated // 2, h.head_dim
        lanes, rest = math.gcd(LANES, half or LANES), math.gcd(LANES, depth - h.rotated or LANES)
        source_head = head_of if kind == 0 else code.add(head_of, h.queries)
        # Of the lanes that pass, whose vectors may be of another size.
        factors = {size: self._factor(row, source_head, kind, size) for size in {lanes, rest}}

        def read(lane: int, size: int) -> str:
            value = code.read(self._qkv, [row, self._column(source_head, lane)], size)
            if not self._norms:
                return value
            of = f"vector<{size}xf32>"
            value = code.let(f"arith.mulf {value}, {factors[size]} : {of}")
            at = self._column(head_of, lane) if self._kind.normed == "all" else code.index(lane)
            return code.let(f"arith.mulf {value}, {code.read(self._norms[kind], [at], size)} : {of}")

        def scaled(value: str, size: int) -> str:
            of = f"vector<{size}xf32>"
            return value if scale is None else code.let(f"arith.mulf {value}, {_constant(code, scale, of)} : {of}")

        halves: list[list[tuple[str, int, int]]] = [[], []]
        of = f"vector<{lanes}xf32>"
        for lane in range(0, half, lanes):
            a, b = read(lane, lanes), read(lane + half, lanes)
            c, s = (code.read(angle, [row, code.index(lane)], lanes) for angle in self._angles)
            for i, (u, v) in enumerate(((a, b), (b, a))):
                cross = code.let(f"arith.mulf {v}, {s} : {of}")
                cross = cross if i else code.let(f"arith.negf {cross} : {of}")
                value = scaled(code.let(f"vector.fma {u}, {c}, {cross} : {of}"), lanes)
                halves[i].append((value, lane + i * half, lanes))
        passed = [(scaled(read(lane, rest), rest), lane, rest) for lane in range(h.rotated, depth, rest)]
        return [*halves[0], *halves[1], *passed]

    def _put_keys(self, keys: str, value: str, lane: int, lanes: int, row: str) -> None:
        """Words of neighbouring lanes of one row: each goes to another group of 16 rows."""
        code, arithmetic = self._code, self._kind.arithmetic
        k, depth = arithmetic.k, self._kind.heads.head_dim
        elements = arithmetic.elements(code, value, lanes)
        tile, inside = code.div(row, LANES), code.rem(row, LANES)
        start = code.add(code.add(keys, code.mul(tile, LANES * depth)), code.mul(inside, k))
        start = code.add(start, lane * LANES)
        for word in range(lanes // k):
            part = code.part(elements, lanes, arithmetic.element, word * k, k)
            code.put(part, k, self.cache, [code.add(start, word * LANES * k)])

    def _put_values(self, values: str, value: str, lane: int, row: str) -> None:
        """16 lanes of one row: each goes to its place among its neighbours' rows."""
        code, arithmetic = self._code, self._kind.arithmetic
        k, capacity = arithmetic.k, self._kind.heads.capacity
        elements = arithmetic.elements(code, value)
        word = code.add(code.div(row, k), lane // LANES * (capacity // k))
        start = code.add(values, code.mul(word, LANES * k))
        if k == 1:
            code.put(elements, LANES, self.cache, [start])
            return
        start = code.add(start, code.rem(row, k))
        kind = f"vector<{LANES}x{arithmetic.element}>"
        for i in range(LANES):
            scalar = code.let(f"vector.extract {elements}[{i}] : {arithmetic.element} from {kind}")
            code.do(f"memref.store {scalar}, {self.cache.name}[{code.add(start, i * k)}] : {self.cache.type}")


def _constant(code: Code, value: float, kind: str) -> str:
    return code.constant(f"dense<{value:.9e}> : {kind}")
