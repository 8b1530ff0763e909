"""A mixture of experts: which rows its router sends to which expert.

A *pair* is a row and one of its experts; pair `row * per_token + i` is the row's i-th choice. Pairs are grouped by
expert, so that an expert's weights are read once for all rows that chose it and not at all where none did.
"""

import math
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Experts
from workers.iree.kernels.ir.builder import FLOATS, LANES, Code, Value
from workers.iree.kernels.ir.dispatch import Dispatch
from workers.iree.kernels.matmul.row_blocks import live_rows

LOW = "-1.0e30"
"""Below every logit; what was chosen gets it."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The sizes of one step's mixture."""

    rows: int
    hidden: int
    experts: Experts

    @property
    def pairs(self) -> int:
        return self.rows * self.experts.per_token

    @property
    def groups(self) -> int:
        """Experts that may be chosen in one step."""
        return min(self.pairs, self.experts.count)

    @property
    def up_tiles(self) -> int:
        """Tiles of one expert's gate; its other half has as many."""
        return self.experts.ffn // LANES

    @property
    def down_tiles(self) -> int:
        return self.hidden // LANES


def route(name: str, m: Mixture) -> str:
    """Logits f32 [rows, count] -> the best experts int32 [rows, per_token], best first and of equals the first, and
    their weights f32 [rows, per_token], as softmax has them (https://arxiv.org/abs/1701.06538).
    """
    count, chosen = m.experts.count, m.experts.per_token
    lanes = math.gcd(LANES, count)
    kind = f"vector<{lanes}xf32>"
    d = Dispatch(name, m.rows)
    code = d.code
    logits = d.take((m.rows, count), "f32")
    experts, weights = d.give((m.rows, chosen), "i32"), d.give((m.rows, chosen), "f32")
    row = d.workgroup()

    def copy(column: str, held: Value) -> Value:
        return code.write(code.read(logits, [row, column], lanes), lanes, held, [code.index(0), column])

    held = code.carry(code.index(0), code.index(count), lanes, code.empty((1, count), "f32"), copy)
    best: list[str] = []
    found, powers = code.empty((1, chosen), "i32"), []
    for i in range(chosen):
        value, expert = _best(code, held, lanes)
        best.append(value)
        found = _insert(code, expert, found, [code.index(0), code.index(i)])
        at = code.let(f"arith.index_cast {expert} : i32 to index")
        held = _insert(code, code.constant(f"{LOW} : f32"), held, [code.index(0), at])
        powers.append(_power(code, value, best[0]))
    total = powers[0]
    if m.experts.normalize:
        for power in powers[1:]:
            total = code.let(f"arith.addf {total}, {power} : f32")
    else:
        top = code.spread(best[0], lanes=lanes)

        def add(column: str, sums: list[str]) -> list[str]:
            value = code.let(f"arith.subf {code.read(logits, [row, column], lanes)}, {top} : {kind}")
            return [code.let(f"arith.addf {sums[0]}, {code.let(f'math.exp {value} : {kind}')} : {kind}")]

        zero = code.constant(f"dense<0.0> : {kind}")
        (sums,) = code.loop(code.index(0), code.index(count), lanes, [(zero, kind)], add)
        total = code.sum_lanes(sums, lanes)
    shares = code.empty((1, chosen), "f32")
    for i, power in enumerate(powers):
        share = code.let(f"arith.divf {power}, {total} : f32")
        shares = _insert(code, share, shares, [code.index(0), code.index(i)])
    d.store(found, experts, [row, "0"])
    d.store(shares, weights, [row, "0"])
    return d.function()


def _best(code: Code, held: Value, lanes: int) -> tuple[str, str]:
    """The greatest of [1, count] and its place, an int32; the last place where nothing is a number."""
    count = held.shape[-1]
    kind, places = f"vector<{lanes}xf32>", f"vector<{lanes}xi32>"

    def most(column: str, state: list[str]) -> list[str]:
        value = code.read(held, [code.index(0), column], lanes)
        return [code.let(f"arith.maxnumf {state[0]}, {value} : {kind}")]

    low = code.constant(f"dense<{LOW}> : {kind}")
    (most_,) = code.loop(code.index(0), code.index(count), lanes, [(low, kind)], most)
    best = code.let(f"vector.reduction <maxnumf>, {most_} : {kind} into f32")
    wanted, beyond = code.spread(best, lanes=lanes), code.constant(f"dense<{count - 1}> : {places}")
    steps = code.constant(f"dense<[{', '.join(map(str, range(lanes)))}]> : {places}")

    def first(column: str, state: list[str]) -> list[str]:
        start = code.spread(code.let(f"arith.index_cast {column} : index to i32"), "i32", lanes)
        at = code.let(f"arith.addi {start}, {steps} : {places}")
        value = code.read(held, [code.index(0), column], lanes)
        equal = code.let(f"arith.cmpf oeq, {value}, {wanted} : {kind}")
        at = code.let(f"arith.select {equal}, {at}, {beyond} : vector<{lanes}xi1>, {places}")
        return [code.let(f"arith.minsi {state[0]}, {at} : {places}")]

    (places_,) = code.loop(code.index(0), code.index(count), lanes, [(beyond, places)], first)
    return best, code.let(f"vector.reduction <minsi>, {places_} : {places} into i32")


def _power(code: Code, value: str, top: str) -> str:
    """exp(value - top), computed as a vector like all others."""
    below = code.spread(code.let(f"arith.subf {value}, {top} : f32"))
    return code.let(f"vector.extract {code.let(f'math.exp {below} : {FLOATS}')}[0] : f32 from {FLOATS}")


def _insert(code: Code, scalar: str, target: Value, at: list[str]) -> Value:
    text = f"tensor.insert {scalar} into {target.name}[{', '.join(at)}] : {target.type}"
    return Value(code.let(text), target.shape, target.element)


def group(name: str, m: Mixture, *, live: bool = False) -> str:
    """Experts of the pairs int32 [rows, per_token] (, live i32 [1]) -> the pairs by expert int32 [pairs], the experts
    that were chosen int32 [groups + 1], and where in the pairs each begins int32 [groups + 1]; behind the last one
    nothing begins. Where there is `live`, the pairs are those of so many rows.
    """
    count, pairs, groups = m.experts.count, m.pairs, m.groups
    d = Dispatch(name, 1)
    code = d.code
    experts = d.take((m.rows, m.experts.per_token), "i32")
    number = d.take((1,), "i32") if live else None
    results = [d.give((size,), "i32") for size in (pairs, groups + 1, groups + 1)]
    zero, one = code.constant("0 : i32"), code.constant("1 : i32")
    end = code.index(pairs)
    if number is not None:
        end = code.mul(live_rows(code, number, m.rows), m.experts.per_token)

    def filled(size: int, value: str) -> Value:
        empty = code.empty((size,), "i32")
        return code.carry(code.index(0), code.index(size), 1, empty, lambda at, held: _insert(code, value, held, [at]))

    def expert_of(pair: str) -> str:
        k = m.experts.per_token
        return code.extract_index(experts, [code.div(pair, k), code.rem(pair, k)])

    def count_one(pair: str, counts: Value) -> Value:
        at = expert_of(pair)
        return _insert(code, code.let(f"arith.addi {code.extract(counts, [at])}, {one} : i32"), counts, [at])

    counts = code.carry(code.index(0), end, 1, filled(count, zero), count_one)

    def begin(expert: str, names: list[str]) -> list[str]:
        offsets, chosen, starts, place, total = names
        at = code.let(f"arith.index_cast {place} : i32 to index")
        size = code.extract(counts, [expert])
        some = code.let(f"arith.minsi {size}, {one} : i32")
        number = code.let(f"arith.index_cast {expert} : index to i32")
        return [
            _insert(code, total, Value(offsets, (count,), "i32"), [expert]).name,
            _insert(code, number, Value(chosen, (groups + 1,), "i32"), [at]).name,
            _insert(code, total, Value(starts, (groups + 1,), "i32"), [at]).name,
            code.let(f"arith.addi {place}, {some} : i32"),
            code.let(f"arith.addi {total}, {size} : i32"),
        ]

    last = code.let(f"arith.index_cast {end} : index to i32")
    held = [filled(count, zero), filled(groups + 1, zero), filled(groups + 1, last)]
    carried = [*((value.name, value.type) for value in held), (zero, "i32"), (zero, "i32")]
    names = code.loop(code.index(0), code.index(count), 1, carried, begin)

    def sort(pair: str, state: list[str]) -> list[str]:
        order, offsets = Value(state[0], (pairs,), "i32"), Value(state[1], (count,), "i32")
        expert = expert_of(pair)
        offset = code.extract(offsets, [expert])
        at = code.let(f"arith.index_cast {offset} : i32 to index")
        number = code.let(f"arith.index_cast {pair} : index to i32")
        order = _insert(code, number, order, [at])
        return [order.name, _insert(code, code.let(f"arith.addi {offset}, {one} : i32"), offsets, [expert]).name]

    order = code.empty((pairs,), "i32")
    carried = [(order.name, order.type), (names[0], held[0].type)]
    sorted_, _ = code.loop(code.index(0), end, 1, carried, sort)
    for name_, result in zip((sorted_, *names[1:3]), results, strict=True):
        d.store(Value(name_, result.shape, "i32"), result, ["0"])
    return d.function()
