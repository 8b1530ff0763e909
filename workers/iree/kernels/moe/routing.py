"""Routing of a mixture of experts: the choice of experts for each row, and the rows of each expert.

A *pair* is a row and one of its experts; pair `row * per_token + i` is the row's i-th choice. Pairs are grouped by
expert, so that an expert's weights are read once for all rows that chose it and not at all where none did.
"""

import math
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Experts
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import live_rows
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import F32, I32, LANES, Type
from workers.iree.kernels.ir.operations import exp
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.rowwise.row_workgroups import RowWorkgroups

LOW = -1.0e30
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
    def lists(self) -> dict[str, int]:
        """The names and sizes of what `group` gives."""
        return {"order": self.pairs, "chosen": self.groups + 1, "starts": self.groups + 1}

    @property
    def up_tiles(self) -> int:
        """Tiles of one expert's gate; its other half has as many."""
        return self.experts.ffn // LANES

    @property
    def down_tiles(self) -> int:
        return self.hidden // LANES

    def take_lists(self, kernel: Kernel) -> list[Memory]:
        """Take what `group` gives as the next inputs of a kernel."""
        return [kernel.input(name, (size,), "i32") for name, size in self.lists.items()]

    def take_bias(self, kernel: Kernel, outputs: int) -> Memory | None:
        """Take the biases of all experts as the next input of a kernel, if there are any: so many of each."""
        return kernel.input("bias", (self.experts.count * outputs,), "f32") if self.experts.biases else None


def route(name: str, m: Mixture, *, live: bool = False) -> str:
    """Logits f32 [rows, count] (, live i32 [1]) -> the best experts int32 [rows, per_token], best first and of equals
    the first, and their weights f32 [rows, per_token], as softmax has them (https://arxiv.org/abs/1701.06538): those of
    the first `live` rows.
    """
    count, chosen, groups = m.experts.count, m.experts.per_token, RowWorkgroups.of(m.rows)
    kernel = Kernel(name, groups.count)
    logits = kernel.input("logits", (m.rows, count), "f32")
    number = kernel.input("live", (1,), "i32") if live else None
    experts = kernel.output("experts", (m.rows, chosen), "i32")
    weights = kernel.output("weights", (m.rows, chosen), "f32")
    held = kernel.code.allocate((count,), "f32")
    groups.write(kernel, number, lambda row: _route_row(kernel.code, m, row, logits, held, experts, weights))
    return kernel.function()


def _route_row(
    code: Code, m: Mixture, row: Value, logits: Memory, held: Memory, experts: Memory, weights: Memory
) -> None:
    """Choose the experts of a row; `held` is room for its logits."""
    count, chosen = m.experts.count, m.experts.per_token
    lanes = math.gcd(LANES, count)
    code.repeat(0, count, lambda at: held.store(logits.load_vector([row, at], lanes), [at]), lanes)
    powers: list[Value] = []
    best: Value | None = None
    for i in range(chosen):
        value, expert = _best(code, held, lanes)
        best = value if best is None else best
        experts.store(expert, [row, i])
        held.store(code.constant(LOW, F32), [expert.astype("index", signed=True)])
        powers.append(_power(value, best))
    assert best is not None
    total = powers[0]
    if m.experts.normalize:
        for power in powers[1:]:
            total = total + power
    else:
        total = _sum_of_powers(code, logits, row, best, lanes)
    for i, power in enumerate(powers):
        weights.store(power / total, [row, i])


def _best(code: Code, held: Memory, lanes: int) -> tuple[Value, Value]:
    """Return the greatest value and its place, an int32; the last place where all are NaN."""
    (count,) = held.shape
    start = code.constant(LOW, Type("f32", lanes))
    (most,) = code.loop(0, count, [start], lambda at, tops: [tops[0].maxnum(held.load_vector([at], lanes))], lanes)
    best = most.reduce("maxnumf")
    wanted, beyond = best.broadcast(lanes), code.constant(count - 1, Type("i32", lanes))

    def first(at: Value, lists: list[Value]) -> list[Value]:
        here = at.astype("i32", signed=True).broadcast(lanes) + code.iota(0, lanes)
        place = held.load_vector([at], lanes).equals(wanted).select(here, beyond)
        return [lists[0].minimum(place, signed=True)]

    (lists,) = code.loop(0, count, [beyond], first, lanes)
    return best, lists.reduce("minsi")


def _power(value: Value, top: Value) -> Value:
    """Return exp(value - top), computed as a vector like all others."""
    return exp((value - top).broadcast()).lane(0)


def _sum_of_powers(code: Code, logits: Memory, row: Value, best: Value, lanes: int) -> Value:
    """Return the sum of exp(logit - best) of all experts."""
    top = best.broadcast(lanes)

    def add(at: Value, sums: list[Value]) -> list[Value]:
        return [sums[0] + exp(logits.load_vector([row, at], lanes) - top)]

    (sums,) = code.loop(0, logits.shape[-1], [code.constant(0.0, Type("f32", lanes))], add, lanes)
    return sums.sum_lanes()


def group(name: str, m: Mixture, *, live: bool = False) -> str:
    """Experts of the pairs int32 [rows, per_token] (, live i32 [1]) -> the pairs by expert int32 [pairs], the experts
    that were chosen int32 [groups + 1], and where in the pairs each begins int32 [groups + 1]; behind the last one
    nothing begins. Where there is `live`, the pairs are those of so many rows.
    """
    count, per_token = m.experts.count, m.experts.per_token
    kernel = Kernel(name, 1)
    code = kernel.code
    experts = kernel.input("experts", (m.rows, per_token), "i32")
    number = kernel.input("live", (1,), "i32") if live else None
    order, chosen, starts = (kernel.output(each, (size,), "i32") for each, size in m.lists.items())
    end = code.index(m.pairs) if number is None else live_rows(number, m.rows) * per_token
    counts, offsets = (code.allocate((count,), "i32") for _ in range(2))

    def expert_of(pair: Value) -> Value:
        return experts.load_index([pair // per_token, pair % per_token])

    def count_pair(pair: Value) -> None:
        expert = expert_of(pair)
        counts.store(counts.load([expert]) + 1, [expert])

    def begin(expert: Value, state: list[Value]) -> list[Value]:
        place, total = state
        at, size = place.astype("index", signed=True), counts.load([expert])
        offsets.store(total, [expert])
        # What no expert follows is overwritten by the next one.
        chosen.store(expert.astype("i32", signed=True), [at])
        starts.store(total, [at])
        return [place + size.minimum(1, signed=True), total + size]

    def sort(pair: Value) -> None:
        expert = expert_of(pair)
        offset = offsets.load([expert])
        order.store(pair.astype("i32", signed=True), [offset.astype("index", signed=True)])
        offsets.store(offset + 1, [expert])

    _fill(code, counts, code.constant(0, I32))
    code.repeat(0, end, count_pair)
    _fill(code, chosen, code.constant(0, I32))
    _fill(code, starts, end.astype("i32", signed=True))
    code.loop(0, count, [code.constant(0, I32)] * 2, begin)
    code.repeat(0, end, sort)
    return kernel.function()


def _fill(code: Code, memory: Memory, value: Value) -> None:
    code.repeat(0, memory.size, lambda at: memory.store(value, [at]))
