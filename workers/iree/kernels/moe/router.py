"""The router of a mixture of experts: it chooses the experts of each row, and their weights."""

import math
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Experts
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import F32, LANES, Type
from workers.iree.kernels.ir.operations import absolute, exp
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.moe.routing import Mixture
from workers.iree.kernels.rowwise.row_workgroups import RowWorkgroups

LOW = -1.0e30
"""Below every logit and score; what was chosen gets it."""


def route(name: str, m: Mixture, *, live: bool = False) -> str:
    """Logits f32 [rows, count] (, the router's bias f32 [count]) (, live i32 [1]) -> the best experts int32 [rows,
    per_token], best first and of equals the first, and their weights f32 [rows, per_token], as the `ExpertRouter` says
    (https://arxiv.org/abs/1701.06538, https://arxiv.org/abs/2412.19437): those of the first `live` rows. All weights of
    a row are NaN if one of its logits is not finite.
    """
    count, chosen, groups = m.experts.count, m.experts.per_token, RowWorkgroups.of(m.rows)
    kernel = Kernel(name, groups.count)
    logits = kernel.input("logits", (m.rows, count), "f32")
    bias = kernel.input("bias", (count,), "f32") if m.experts.router.bias else None
    number = kernel.input("live", (1,), "i32") if live else None
    experts = kernel.output("experts", (m.rows, chosen), "i32")
    weights = kernel.output("weights", (m.rows, chosen), "f32")
    router, code = m.experts.router, kernel.code
    held, scores = (code.allocate((count,), "f32") for _ in range(2))
    routing = _Routing(code, m.experts, logits, bias, held, scores, code.allocate((router.groups,), "f32"))
    groups.write(kernel, number, lambda row: routing.write(row, experts, weights))
    return kernel.function()


@dataclass(frozen=True, slots=True)
class _Routing:
    """The code that chooses the experts of a row."""

    code: Code
    experts: Experts
    logits: Memory
    bias: Memory | None
    held: Memory
    """Room for what experts are chosen by."""
    scores: Memory
    tops: Memory
    """Room for the scores of a row's experts, and of its groups."""

    @property
    def lanes(self) -> int:
        return math.gcd(LANES, self.experts.count)

    def write(self, row: Value, experts: Memory, weights: Memory) -> None:
        """Store the experts of a row and their weights."""
        router = self.experts.router
        if router.score == "sparsemixer":
            chosen = self._sparse_choices(row)
        elif router.by_logits:
            chosen = self._best_logits(row)
        else:
            chosen = self._best_scores(row)
        zero = self._zero(row)
        for i, (expert, weight) in enumerate(chosen):
            experts.store(expert, [row, i])
            weights.store((weight if router.scale == 1 else weight * router.scale) + zero, [row, i])

    def _best_logits(self, row: Value) -> list[tuple[Value, Value]]:
        """The weights are those of a softmax of all experts, or of the chosen ones."""
        self._hold_logits(row)
        chosen = [self._take(self.held) for _ in range(self.experts.per_token)]
        top = chosen[0][0]
        powers = [_power(value, top) for value, _ in chosen]
        total = _sum(powers) if self.experts.normalize else self._sum_of_powers(row, top)
        return [(expert, power / total) for (_, expert), power in zip(chosen, powers, strict=True)]

    def _best_scores(self, row: Value) -> list[tuple[Value, Value]]:
        """Experts are chosen by score and bias, from the best groups; their weights are their scores."""
        router, scores = self.experts.router, self.scores
        self._score(row)

        def hold(at: Value) -> None:
            score = scores.load_vector([at], self.lanes)
            self.held.store(score if self.bias is None else score + self.bias.load_vector([at], self.lanes), [at])

        self.code.repeat(0, self.experts.count, hold, self.lanes)
        if router.groups > 1:
            self._drop_groups()
        chosen = [self._take(self.held)[1] for _ in range(self.experts.per_token)]
        weights = [scores.load([expert.astype("index", signed=True)]) for expert in chosen]
        if self.experts.normalize:
            total = _sum(weights)
            total = total + router.sum_offset if router.sum_offset else total
            total = total.maximum(router.least_sum) if router.least_sum else total
            weights = [weight / total for weight in weights]
        return list(zip(chosen, weights, strict=True))

    def _score(self, row: Value) -> None:
        """Store the scores of a row's experts: sigmoids, or a softmax."""
        scores, lanes, one = self.scores, self.lanes, self.code.constant(1.0, Type("f32", self.lanes))
        if self.experts.router.score == "sigmoid":

            def sigmoid(at: Value) -> None:
                scores.store(one / (exp(-self.logits.load_vector([row, at], lanes)) + 1.0), [at])

            self.code.repeat(0, self.experts.count, sigmoid, lanes)
            return
        self._hold_logits(row)
        top, _ = _best(self.code, self.held, lanes)
        total, most = self._sum_of_powers(row, top).broadcast(lanes), top.broadcast(lanes)

        def softmax(at: Value) -> None:
            scores.store(exp(self.logits.load_vector([row, at], lanes) - most) / total, [at])

        self.code.repeat(0, self.experts.count, softmax, lanes)

    def _drop_groups(self) -> None:
        """Hold `LOW` for the experts of all but the best groups."""
        code, held, router = self.code, self.held, self.experts.router
        size = self.experts.count // router.groups
        lanes, tops = math.gcd(LANES, size), self.tops
        low = code.constant(LOW, F32)

        def score(group: Value) -> None:
            first = group * size
            best, place = _best(code, held, lanes, first, size)
            if router.group_best == 2:
                at = first + place.astype("index", signed=True)
                held.store(low, [at])
                second, _ = _best(code, held, lanes, first, size)
                held.store(best, [at])
                best = best + second
            tops.store(best, [group])

        def drop(group: Value) -> None:
            fill = lambda at: held.store(low.broadcast(lanes), [group * size + at])  # noqa: E731
            code.when(tops.load([group]) > low, lambda: code.repeat(0, size, fill, lanes))

        code.repeat(0, router.groups, score)
        for _ in range(router.kept_groups):
            self._take(tops)
        code.repeat(0, router.groups, drop)

    def _sparse_choices(self, row: Value) -> list[tuple[Value, Value]]:
        """The weight of each choice is its part of a softmax over those that it does not outdo by far."""
        self._hold_logits(row)
        chosen: list[tuple[Value, Value]] = []
        for _ in range(self.experts.per_token):
            top, place = _best(self.code, self.held, self.lanes)
            chosen.append((place, self.code.constant(1.0, F32) / self._sum_of_near_powers(top)))
            self.held.store(self.code.constant(LOW, F32), [place.astype("index", signed=True)])
        return chosen

    def _sum_of_near_powers(self, top: Value) -> Value:
        """Return the sum of exp(value - top) of the held values that are near the greatest."""
        lanes, zero = self.lanes, self.code.constant(0.0, Type("f32", self.lanes))
        most, beyond = top.broadcast(lanes), self.code.constant(2 * self.experts.router.jitter, zero.type)

        def add(at: Value, sums: list[Value]) -> list[Value]:
            value = self.held.load_vector([at], lanes)
            far = (most - value) / absolute(value).maximum(most) > beyond
            return [sums[0] + far.select(zero, exp(value - most))]

        (sums,) = self.code.loop(0, self.experts.count, [zero], add, lanes)
        return sums.sum_lanes()

    def _hold_logits(self, row: Value) -> None:
        def hold(at: Value) -> None:
            self.held.store(self.logits.load_vector([row, at], self.lanes), [at])

        self.code.repeat(0, self.experts.count, hold, self.lanes)

    def _take(self, held: Memory) -> tuple[Value, Value]:
        """Return the greatest value that is held and its place, and hold `LOW` in it."""
        value, place = _best(self.code, held, math.gcd(LANES, held.size))
        held.store(self.code.constant(LOW, F32), [place.astype("index", signed=True)])
        return value, place

    def _sum_of_powers(self, row: Value, best: Value) -> Value:
        """Return the sum of exp(logit - best) of all experts."""
        lanes = self.lanes
        top = best.broadcast(lanes)

        def add(at: Value, sums: list[Value]) -> list[Value]:
            return [sums[0] + exp(self.logits.load_vector([row, at], lanes) - top)]

        (sums,) = self.code.loop(0, self.experts.count, [self.code.constant(0.0, Type("f32", lanes))], add, lanes)
        return sums.sum_lanes()

    def _zero(self, row: Value) -> Value:
        """Return 0 if all logits of a row are finite, NaN otherwise."""
        lanes = self.lanes

        def add(at: Value, sums: list[Value]) -> list[Value]:
            logits = self.logits.load_vector([row, at], lanes)
            return [sums[0] + (logits - logits)]

        (sums,) = self.code.loop(0, self.experts.count, [self.code.constant(0.0, Type("f32", lanes))], add, lanes)
        return sums.sum_lanes()


def _best(code: Code, held: Memory, lanes: int, low: Index = 0, size: int | None = None) -> tuple[Value, Value]:
    """Return the greatest of `size` values from `low` on, by default of all, and its place behind `low`, an int32; the
    last place where all are NaN."""
    count = held.size if size is None else size
    start, first_at = code.constant(LOW, Type("f32", lanes)), code.index(low)

    def load(at: Value) -> Value:
        return held.load_vector([first_at + at], lanes)

    (most,) = code.loop(0, count, [start], lambda at, tops: [tops[0].maxnum(load(at))], lanes)
    best = most.reduce("maxnumf")
    wanted, beyond = best.broadcast(lanes), code.constant(count - 1, Type("i32", lanes))

    def first(at: Value, lists: list[Value]) -> list[Value]:
        here = at.astype("i32", signed=True).broadcast(lanes) + code.iota(0, lanes)
        place = load(at).equals(wanted).select(here, beyond)
        return [lists[0].minimum(place, signed=True)]

    (lists,) = code.loop(0, count, [beyond], first, lanes)
    return best, lists.reduce("minsi")


def _sum(values: list[Value]) -> Value:
    """Return the sum of scalars, in their order."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _power(value: Value, top: Value) -> Value:
    """Return exp(value - top), computed as a vector like all others."""
    return exp((value - top).broadcast()).lane(0)
