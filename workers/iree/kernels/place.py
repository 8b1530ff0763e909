"""What lies between the projections and attention: head norms, rotary positions, and the rows' place in the cache."""

import math
from dataclasses import dataclass

from workers.iree.kernels.arithmetic import Arithmetic
from workers.iree.kernels.code import LANES, Code, Dispatch, Value
from workers.iree.kernels.norm import inverse_root_mean_square

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

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.queries // self.heads

    @property
    def cache(self) -> tuple[int, ...]:
        return (self.layers, 2, self.slots, self.heads, self.capacity * self.head_dim)


def place(name: str, h: Heads, arithmetic: Arithmetic, eps: float | None) -> str:
    """qkv f32 [batch * tokens, queries + 2 heads, head_dim], cos and sin f32 [batch * tokens, head_dim / 2], slots
    int32 [batch], rows int32 [batch, tokens] (, weights of the norms of query and key heads f32 [head_dim]), cache
    -> words [batch * tokens, queries, head_dim / k] of the queries, scaled, and the cache with keys and values.

    RoPE turns pairs made of a head's halves (https://arxiv.org/abs/2104.09864). `eps` is that of the head norms.
    """
    per = math.gcd(h.tokens, TOKENS)
    d = Dispatch(name, (h.heads, h.tokens // per, h.batch))
    code, depth = d.code, h.head_dim
    rows = h.batch * h.tokens
    qkv = d.take((rows, h.queries + 2 * h.heads, depth), "f32")
    cos, sin = (d.take((rows, depth // 2), "f32") for _ in range(2))
    slots, at = d.take((h.batch,), "i32"), d.take((h.batch, h.tokens), "i32")
    norms = [d.take((depth,), "f32") for _ in range(2)] if eps is not None else []
    cache = d.argument(h.cache, arithmetic.element, in_place=True)
    out = d.give((rows, h.queries, depth // arithmetic.k), "i32")

    head, block, sequence = (d.workgroup(axis) for axis in range(3))
    slot = code.extract_index(slots, [sequence])
    layer = d.number(h.layer)
    wheres = [[layer, str(part), slot, head, "0"] for part in range(2)]
    sizes = (1, 1, 1, 1, h.capacity * depth)
    keys, values = (d.load(cache, where, sizes, (h.capacity * depth,)) for where in wheres)

    def turned(row: str, source_head: str, weight: int, scale: float | None) -> list[tuple[str, str, int]]:
        """(vector, first lane, lanes) of one head, normed, rotated and scaled."""
        lanes = math.gcd(LANES, depth // 2)
        kind = f"vector<{lanes}xf32>"
        factor = None
        if eps is not None:
            flat = [row, source_head]
            factor = code.spread(inverse_root_mean_square(code, qkv, flat, depth, eps, lanes), lanes=lanes)
        turned_halves: list[list[tuple[str, str, int]]] = [[], []]
        for lane in range(0, depth // 2, lanes):
            a, b = (
                _normed(code, qkv, [row, source_head], lane + half, factor, norms[weight] if norms else None, lanes)
                for half in (0, depth // 2)
            )
            c, s = (code.read(angle, [row, code.index(lane)], lanes) for angle in (cos, sin))
            for half, (u, v, sign) in enumerate(((a, b, "-"), (b, a, "+"))):
                cross = code.let(f"arith.mulf {v}, {s} : {kind}")
                if sign == "-":
                    cross = code.let(f"arith.negf {cross} : {kind}")
                value = code.let(f"vector.fma {u}, {c}, {cross} : {kind}")
                if scale is not None:
                    value = code.let(f"arith.mulf {value}, {code.constant(f'dense<{scale:.9e}> : {kind}')} : {kind}")
                turned_halves[half].append((value, code.index(lane + half * (depth // 2)), lanes))
        return turned_halves[0] + turned_halves[1]

    def queries(row: str) -> None:
        part = code.empty((1, h.group, depth // arithmetic.k), "i32")

        def turn(index: str, part: Value) -> Value:
            source = code.add(code.mul(head, h.group), index)
            for value, lane, lanes in turned(row, source, 0, h.scale):
                where = [code.index(0), index, code.div(lane, arithmetic.k)]
                part = code.write(arithmetic.words(code, value, lanes), lanes // arithmetic.k, part, where)
            return part

        part = code.carry(code.index(0), code.index(h.group), 1, part, turn)
        d.store(part, out, [row, code.mul(head, h.group), "0"])

    def token(index: str, names: list[str]) -> list[str]:
        row = code.add(code.mul(sequence, h.tokens), index)
        queries(row)
        position = code.extract_index(at, [sequence, index])
        k, v = (Value(name, keys.shape, keys.element) for name in names)
        for value, lane, lanes in turned(row, code.add(head, h.queries), 1, None):
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


def _normed(
    code: Code, x: Value, at: list[str], lane: int, factor: str | None, weight: Value | None, lanes: int
) -> str:
    value = code.read(x, [*at, code.index(lane)], lanes)
    if factor is None or weight is None:
        return value
    kind = f"vector<{lanes}xf32>"
    value = code.let(f"arith.mulf {value}, {factor} : {kind}")
    return code.let(f"arith.mulf {value}, {code.read(weight, [code.index(lane)], lanes)} : {kind}")


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
