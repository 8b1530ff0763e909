"""The filters of one row (`workers.sampling.filters`).

The thresholds are searched for in the candidates, the cells that have the likeliest tokens, as in
`workers.sampling.top_candidates`. Where these do not decide what the filters keep, all cells are searched.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.sampling.logits_row import NEAREST, LogitsRow, RowSampling, mass_of
from workers.sampling.filters import information_of, mean_steps
from workers.sampling.fixed_point import FAR, WEIGHT_ONE
from workers.sampling.top_candidates import CELLS

FIRST, LAST = 20, 5
"""The bits of a number of steps that the search for candidates decides, from the highest on: to a 2048th of a
halving."""
NOWHERE = 1 << FIRST + 1
"""The steps of a cell without a token that can be sampled: more than any candidate may have."""


def filtered(row: LogitsRow, sampling: RowSampling) -> Value:
    """Return a token of those that the filters keep."""
    code, candidates, lanes = row.code, row.shape.candidates, row.shape.lanes
    within, total = _choose(row, sampling)
    count = row.xp.minimum(total, CELLS).astype("index")

    def first(at: Value) -> Value:
        return at * LANES

    def second(at: Value) -> Value:
        return first(at) + CELLS * LANES

    def store(at: Value) -> None:
        distance = sampling.distances(row.cell(row.load(candidates, at).astype("index")))
        row.store(distance.view("i32"), lanes, first(at))
        row.store(sampling.weights(sampling.steps(distance)), lanes, second(at))

    code.repeat(0, count, store)
    some = _Candidates(
        row,
        sampling,
        count,
        distance=lambda at: row.load_vector(lanes, first(at)).view("f32"),
        weight=lambda at: row.load_vector(lanes, second(at)),
        keep=lambda at, weights: row.store(weights, lanes, second(at)),
    )

    def few() -> Value:
        cell, lane = some.sample()
        return row.load(candidates, cell.astype("index")) * LANES + lane

    return code.choose((total <= CELLS) & some.decided(within), few, lambda: _of_all(row, sampling))


def _of_all(row: LogitsRow, sampling: RowSampling) -> Value:
    """Return a token of those that the filters keep, from all cells."""
    code, lanes, cells = row.code, row.shape.lanes, row.code.index(row.shape.cells)

    def place(at: Value) -> Value:
        return at * LANES

    code.repeat(0, cells, lambda at: row.store(sampling.weights_of(row.cell(at)), lanes, place(at)))
    cell, lane = _Candidates(
        row,
        sampling,
        cells,
        distance=lambda at: sampling.distances(row.cell(at)),
        weight=lambda at: row.load_vector(lanes, place(at)),
        keep=lambda at, weights: row.store(weights, lanes, place(at)),
    ).sample()
    return cell * LANES + lane


def _choose(row: LogitsRow, sampling: RowSampling) -> tuple[Value, Value]:
    """Store the candidates: return the largest number of steps at which at most `CELLS` cells have a token, and how
    many cells these are."""
    code, xp, s = row.code, row.xp, row.shape
    vectors = s.top_vectors

    def near(at: Value) -> Value:
        return at * LANES + NEAREST

    def store(at: Value) -> None:
        tops = row.vector(s.tops, at)
        # What pads the last vector is no cell: nothing of the row lies there.
        row.store(xp.where(tops > -math.inf, sampling.steps(sampling.distances(tops)), NOWHERE), s.candidates, near(at))

    def halve(_: Value, state: list[Value]) -> list[Value]:
        within, step = state
        more = within + step
        few = row.count(vectors, lambda at: row.load_vector(s.candidates, near(at)) <= more) <= CELLS
        return [xp.where(few, more, within), step >> 1]

    def look(at: Value, state: list[Value]) -> list[Value]:
        def one(lane: Value, state: list[Value]) -> list[Value]:
            cell = at * LANES + lane
            # A candidate beyond the last one overwrites the spare element behind it.
            row.store(row.place(cell), s.candidates, xp.minimum(state[0], CELLS).astype("index"))
            return [state[0] + (row.load(s.candidates, cell + NEAREST) <= within).astype("i32")]

        found = (row.load_vector(s.candidates, near(at)) <= within).astype("i32").reduce("add")
        return [code.choose(found > 0, lambda: code.loop(0, LANES, state, one)[0], lambda: state[0])]

    code.repeat(0, vectors, store)
    start = [row.number(0), row.number(1 << FIRST)]
    within, _ = code.loop(0, FIRST - LAST + 1, start, halve)
    (total,) = code.loop(0, vectors, [row.number(0)], look)
    return within, total


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The cells that are searched: `count` vectors of distances and weights. The filters set weights to 0."""

    row: LogitsRow
    sampling: RowSampling
    count: Value
    distance: Callable[[Value], Value]
    weight: Callable[[Value], Value]
    keep: Callable[[Value, Value], None]

    def decided(self, within: Value) -> Value:
        """Return whether these cells decide all that the filters keep, as in `workers.sampling.top_candidates`; to be
        called before a filter."""
        row, sampling = self.row, self.sampling
        inside = row.count(self.count, lambda at: self._steps(at) <= within)
        share = mass_of(self._sum(lambda at: self._steps(at) <= within))
        by_top_k = (sampling.top_k > 0) & (sampling.top_k <= inside)
        by_top_p = sampling.top_p_of_all & (share >= sampling.top_p * mass_of(sampling.total()))
        beyond = sampling.weights(within + 1)
        by_min_p = (beyond < self._least()) & (sampling.top_k.equals(0) | (sampling.top_p >= 1.0))
        # typical_p compares with the entropy of what top_k keeps, and XTC only removes tokens.
        return by_top_k | ((by_top_p | by_min_p) & sampling.typical.equals(0)) | (within >= FAR)

    def sample(self) -> tuple[Value, Value]:
        """Return the vector and the lane of the token."""
        row, sampling, code = self.row, self.sampling, self.row.code
        nearest = code.choose(sampling.top_k > 0, self._nearest, lambda: row.number(-1))
        left = self._keep(lambda at: self.distance(at).view("i32") <= nearest)
        left = code.choose(sampling.typical, lambda: self._typical(left), lambda: left)
        part = sampling.top_k.equals(0) & sampling.typical.equals(0)
        wanted = sampling.top_p * mass_of(code.choose(part, sampling.total, lambda: left))
        wanted = row.xp.maximum(wanted, 1.0)
        likely = code.choose(sampling.top_p >= 1.0, lambda: row.number(FAR), lambda: self._likely(self._steps, wanted))
        least = code.choose(sampling.typical, self._least_of_highest, self._least)
        total = self._keep(lambda at: (self._steps(at) <= likely) & (self.weight(at) >= least))
        total = code.choose(sampling.xtc, lambda: self._exclude_top_choices(total), lambda: total)
        return row.search_lane(sampling.point(total), self.count, self.weight)

    def _typical(self, mass: Value) -> Value:
        """Keep the tokens whose information is closest to the entropy; return the sum of their weights."""
        row, xp, typical_p = self.row, self.row.xp, self.sampling.typical_p
        information = row.sum(self.count, lambda at: information_of(self.weight(at), self._steps(at)))
        mean = mean_steps(xp, mass_of(information), mass_of(mass))

        def shift(at: Value) -> Value:
            steps = self._steps(at)
            larger, smaller = xp.maximum(steps, mean), xp.minimum(steps, mean)
            return larger - smaller

        limit = self._likely(shift, xp.maximum(typical_p * mass_of(mass), 1.0))
        return self._keep(lambda at: shift(at) <= limit)

    def _exclude_top_choices(self, mass: Value) -> Value:
        """Remove the top choices but the least likely of them, if the row's coin asks for it; return the sum of the
        rest."""
        row, xp = self.row, self.row.xp
        wanted = self.sampling.xtc_threshold * mass_of(mass)

        def lower(at: Value, lowest: list[Value]) -> list[Value]:
            weight = self.weight(at)
            top = (weight > 0) & (weight.astype("f32") >= wanted)
            return [xp.minimum(xp.where(top, weight, WEIGHT_ONE), lowest[0])]

        (lowest,) = row.code.loop(0, self.count, [row.vector_of(WEIGHT_ONE)], lower)
        limit = self.sampling.excludes().select(lowest.reduce("minui"), WEIGHT_ONE)
        return self._keep(lambda at: self.weight(at) <= limit)

    def _least_of_highest(self) -> Value:
        """Return the smallest weight that min_p keeps, where typical_p may have removed the most likely token."""
        row, xp = self.row, self.row.xp

        def higher(at: Value, highest: list[Value]) -> list[Value]:
            return [xp.maximum(self.weight(at), highest[0])]

        (highest,) = row.code.loop(0, self.count, [row.vector_of(0)], higher)
        return (self.sampling.min_p * highest.reduce("maxui").astype("f32")).astype("i32")

    def _nearest(self) -> Value:
        """Return the bits of the k-th smallest distance, as `workers.sampling.sample` has it; all ones where there are
        fewer."""
        row, xp = self.row, self.row.xp

        def halve(_: Value, state: list[Value]) -> list[Value]:
            found, step = state
            limit = found + step - 1
            near = row.count(self.count, lambda at: self.distance(at).view("i32") <= limit)
            return [xp.where(near < self.sampling.top_k, found + step, found), step >> 1]

        return row.code.loop(0, 31, [row.number(0), row.number(1 << 30)], halve)[0]

    def _likely(self, number: Callable[[Value], Value], wanted: Value) -> Value:
        """Return the smallest limit at which the tokens with no larger number have the wanted mass."""
        row, xp = self.row, self.row.xp

        def halve(_: Value, state: list[Value]) -> list[Value]:
            low, high = state
            middle = (low + high) >> 1
            held = mass_of(self._sum(lambda at: number(at) <= middle)) >= wanted
            low, high = xp.where(held, low, middle + 1), xp.where(held, middle, high)
            return [xp.minimum(low, high), high]

        return row.code.loop(0, FAR.bit_length(), [row.number(0), row.number(FAR)], halve)[1]

    def _least(self) -> Value:
        """Return the smallest weight that min_p keeps."""
        return (self.sampling.min_p * WEIGHT_ONE).astype("i32")

    def _steps(self, at: Value) -> Value:
        return self.sampling.steps(self.distance(at))

    def _sum(self, holds: Callable[[Value], Value]) -> Value:
        return self.row.sum(self.count, lambda at: self.row.xp.where(holds(at), self.weight(at), 0))

    def _keep(self, holds: Callable[[Value], Value]) -> Value:
        """Set the weights to 0 where a condition does not hold; return the sum of the rest."""

        def left(at: Value) -> Value:
            weights = self.row.xp.where(holds(at), self.weight(at), 0)
            self.keep(at, weights)
            return weights

        return self.row.sum(self.count, left)
