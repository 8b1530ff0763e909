"""What lies between the projections and attention: head norms, rotary positions, and the rows' place in the cache."""

import math
from dataclasses import dataclass

from workers.architectures.parts import HeadNorm
from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import LANES, Code, Dispatch, Value
from workers.iree.kernels.norm import inverse_root, inverse_root_mean_square

TOKENS = 16
"""Tokens of a workgroup."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The sizes of one layer's attention, and of the cache [layers, 2, slots, heads, capacity * head_dim].

    A slot's keys are packed [capacity / 16, head_dim / k, 16, k], its values [head_dim / 16, capacity / k, 16, k].
    """

    layer: int
    layers: int
    slots: int
    queries: int
    """Query heads."""
    heads: int
    """KV heads."""
    head_dim: int
    capacity: int
    attended: int
    """Rows of a slot that may be seen; those behind are nobody's."""
    batch: int
    tokens: int
    scale: float
    """Queries are multiplied by it."""
    rotated: int
    """Lanes of a head that RoPE turns, the first ones; 0 where a layer has no positions."""

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.queries // self.heads

    @property
    def cache(self) -> tuple[int, ...]:
        return (self.layers, 2, self.slots, self.heads, self.capacity * self.head_dim)


def place(name: str, h: Heads, arithmetic: Arithmetic, eps: float, normed: HeadNorm | None) -> str:
    """qkv f32 [batch * tokens, queries + 2 heads, head_dim] (, cos and sin f32 [batch * tokens, rotated / 2]), slots
    int32 [batch], rows int32 [batch, tokens] (, weights of the norms of queries and keys, flat f32), cache
    -> words [batch * tokens, queries, head_dim / word] of the queries, scaled, and the cache with keys and values.

    RoPE turns pairs made of the halves of a head's rotated lanes (https://arxiv.org/abs/2104.09864). `eps` is that of
    the norms, whose weights are [head_dim] for each head or, of all heads together, [heads * head_dim].
    """
    per = math.gcd(h.tokens, TOKENS)
    d = Dispatch(name, (h.heads, h.tokens // per, h.batch))
    code, depth = d.code, h.head_dim
    rows = h.batch * h.tokens
    qkv = d.take((rows, h.queries + 2 * h.heads, depth), "f32")
    angles = [d.take((rows, h.rotated // 2), "f32") for _ in range(2)] if h.rotated else []
    slots, at = d.take((h.batch,), "i32"), d.take((h.batch, h.tokens), "i32")
    counts = (h.queries, h.heads) if normed == "all" else (1, 1)
    norms = [d.take((count * depth,), "f32") for count in counts] if normed else []
    cache = d.argument(h.cache, arithmetic.element, in_place=True)
    out = d.give((rows, h.queries, depth // arithmetic.word), "i32")

    head, block, sequence = (d.workgroup(axis) for axis in range(3))
    slot = code.extract_index(slots, [sequence])
    layer = d.number(h.layer)
    wheres = [[layer, str(part), slot, head, "0"] for part in range(2)]
    sizes = (1, 1, 1, 1, h.capacity * depth)
    keys, values = (d.load(cache, where, sizes, (h.capacity * depth,)) for where in wheres)

    def factor(row: str, source_head: str, kind: int, lanes: int) -> str | None:
        """What queries (0) or keys (1) are multiplied by before their norm's weight."""
        if normed is None:
            return None
        if normed == "each":
            root = inverse_root_mean_square(code, qkv, [row, source_head], depth, eps, lanes)
        else:
            root = _of_all(code, qkv, row, (0, h.queries)[kind], counts[kind], eps)
        return code.spread(root, lanes=lanes)

    def turned(row: str, head_of: str, kind: int, scale: float | None) -> list[tuple[str, str, int]]:
        """(vector, first lane, lanes) of query or key head `head_of`, normed, rotated and scaled."""
        half = h.rotated // 2
        lanes, rest = math.gcd(LANES, half or LANES), math.gcd(LANES, depth - h.rotated or LANES)
        source_head = head_of if kind == 0 else code.add(head_of, h.queries)
        # Of the lanes that pass, whose vectors may be of another size.
        factors = {size: factor(row, source_head, kind, size) for size in {lanes, rest}}

        def read(lane: int, size: int) -> str:
            value = code.read(qkv, [row, source_head, code.index(lane)], size)
            if not norms:
                return value
            of = f"vector<{size}xf32>"
            value = code.let(f"arith.mulf {value}, {factors[size]} : {of}")
            at = code.add(code.mul(head_of, depth), lane) if normed == "all" else code.index(lane)
            return code.let(f"arith.mulf {value}, {code.read(norms[kind], [at], size)} : {of}")

        def scaled(value: str, size: int) -> str:
            of = f"vector<{size}xf32>"
            return value if scale is None else code.let(f"arith.mulf {value}, {_constant(code, scale, of)} : {of}")

        halves: list[list[tuple[str, str, int]]] = [[], []]
        of = f"vector<{lanes}xf32>"
        for lane in range(0, half, lanes):
            a, b = read(lane, lanes), read(lane + half, lanes)
            c, s = (code.read(angle, [row, code.index(lane)], lanes) for angle in angles)
            for i, (u, v) in enumerate(((a, b), (b, a))):
                cross = code.let(f"arith.mulf {v}, {s} : {of}")
                cross = cross if i else code.let(f"arith.negf {cross} : {of}")
                value = scaled(code.let(f"vector.fma {u}, {c}, {cross} : {of}"), lanes)
                halves[i].append((value, code.index(lane + i * half), lanes))
        passed = [(scaled(read(lane, rest), rest), code.index(lane), rest) for lane in range(h.rotated, depth, rest)]
        return [*halves[0], *halves[1], *passed]

    def queries(row: str) -> None:
        part = code.empty((1, h.group, depth // arithmetic.word), "i32")

        def turn(index: str, part: Value) -> Value:
            source = code.add(code.mul(head, h.group), index)
            for value, lane, lanes in turned(row, source, 0, h.scale):
                where = [code.index(0), index, code.div(lane, arithmetic.word)]
                part = code.write(arithmetic.words(code, value, lanes), lanes // arithmetic.word, part, where)
            return part

        part = code.carry(code.index(0), code.index(h.group), 1, part, turn)
        d.store(part, out, [row, code.mul(head, h.group), "0"])

    def token(index: str, names: list[str]) -> list[str]:
        row = code.add(code.mul(sequence, h.tokens), index)
        queries(row)
        position = code.extract_index(at, [sequence, index])
        k, v = (Value(name, keys.shape, keys.element) for name in names)
        for value, lane, lanes in turned(row, head, 1, None):
            k = _put_keys(code, arithmetic, k, value, lane, lanes, position, depth)
        source = code.add(head, h.queries + h.heads)
        for start in range(0, depth, LANES):
            value = code.read(qkv, [row, source, code.index(start)])
            v = _put_values(code, arithmetic, v, value, start, position, h.capacity)
        return [k.name, v.name]

    low = code.mul(block, per)
    names = code.loop(low, code.add(low, per), 1, [(keys.name, keys.type), (values.name, values.type)], token)
    for name_, where in zip(names, wheres, strict=True):
        d.store(Value(name_, keys.shape, keys.element), cache, where, sizes)
    return d.function()


def _constant(code: Code, value: float, kind: str) -> str:
    return code.constant(f"dense<{value:.9e}> : {kind}")


def _of_all(code: Code, x: Value, row: str, first: int, heads: int, eps: float) -> str:
    """1 / sqrt(mean(x^2) + eps) of all lanes of some heads."""
    depth = x.shape[-1]
    lanes = math.gcd(LANES, depth)
    kind = f"vector<{lanes}xf32>"

    def head(at: str, sums: list[str]) -> list[str]:
        def turn(column: str, inner: list[str]) -> list[str]:
            value = code.read(x, [row, at, column], lanes)
            return [code.let(f"vector.fma {value}, {value}, {inner[0]} : {kind}")]

        return code.loop(code.index(0), code.index(depth), lanes, [(sums[0], kind)], turn)

    zero = _constant(code, 0.0, kind)
    (squares,) = code.loop(code.index(first), code.index(first + heads), 1, [(zero, kind)], head)
    return inverse_root(code, code.sum_lanes(squares, lanes), heads * depth, eps)


def _put_keys(
    code: Code, arithmetic: Arithmetic, keys: Value, value: str, lane: str, lanes: int, row: str, depth: int
) -> Value:
    """Words of neighbouring lanes of one row: each goes to another group of 16 rows."""
    k = arithmetic.k
    elements = arithmetic.elements(code, value, lanes)
    tile, inside = code.div(row, LANES), code.rem(row, LANES)
    start = code.add(code.mul(tile, LANES * depth), code.mul(inside, k))
    start = code.add(start, code.mul(lane, LANES))
    for word in range(lanes // k):
        part = code.part(elements, lanes, arithmetic.element, word * k, k)
        keys = code.write(part, k, keys, [code.add(start, word * LANES * k)])
    return keys


def _put_values(
    code: Code, arithmetic: Arithmetic, values: Value, value: str, lane: int, row: str, capacity: int
) -> Value:
    """16 lanes of one row: each goes to its place among its neighbours' rows."""
    k = arithmetic.k
    elements = arithmetic.elements(code, value)
    kind = f"vector<{LANES}x{arithmetic.element}>"
    word = code.add(code.div(row, k), lane // LANES * (capacity // k))
    start = code.mul(word, LANES * k)
    start = code.add(start, code.rem(row, k)) if k > 1 else start
    if k == 1:
        return code.write(elements, LANES, values, [start])
    for i in range(LANES):
        scalar = code.let(f"vector.extract {elements}[{i}] : {arithmetic.element} from {kind}")
        place = code.add(start, i * k)
        text = f"tensor.insert {scalar} into {values.name}[{place}] : {values.type}"
        values = Value(code.let(text), values.shape, values.element)
    return values
