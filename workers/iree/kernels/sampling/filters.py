"""top_k, top_p and min_p of one row (`workers.sampling.sample.filter_weights`).

The thresholds are looked for among the cells that have the likeliest tokens, as in `workers.sampling.top_candidates`;
only where these do not tell what is kept, among all.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.array_namespace import Word
from workers.iree.kernels.ir.builder import LANES
from workers.iree.kernels.sampling.logits_row import NEAREST, Ask, Row, mass_of
from workers.sampling.fixed_point import FAR, WEIGHT_ONE
from workers.sampling.top_candidates import CELLS

FIRST, LAST = 20, 5
"""Bits of the steps that a cell's likeliest token may be away: to a 2048th of a halving."""
NOWHERE = 1 << FIRST + 1
"""The steps of a cell without a token that can be drawn: more than any that is looked at may have."""


def filtered(row: Row, ask: Ask) -> Word:
    """A token of those that the filters keep."""
    code, noted, lanes = row.code, row.sizes.noted, row.sizes.lanes
    within, total = _choose(row, ask)
    count = row.xp.minimum(total, CELLS).index()

    def first(at: str) -> str:
        return code.mul(at, LANES)

    def second(at: str) -> str:
        return code.add(first(at), CELLS * LANES)

    def note(at: str) -> None:
        distance = ask.distances(row.cell(row.load(noted, at, 0).index()))
        row.store(distance.view("i32"), lanes, first(at))
        row.store(ask.weights(ask.steps(distance)), lanes, second(at))

    code.repeat(row.index(0), count, 1, note)
    some = _Looked(
        row,
        ask,
        count,
        distance=lambda at: row.load(lanes, first(at)).view("f32"),
        weight=lambda at: row.load(lanes, second(at)),
        keep=lambda at, weights: row.store(weights, lanes, second(at)),
    )

    def few() -> Word:
        cell, lane = some.draw()
        return row.load(noted, cell.index(), 0) * LANES + lane

    return row.xp.choose((total <= CELLS) & some.decided(within), few, lambda: _of_all(row, ask))


def _of_all(row: Row, ask: Ask) -> Word:
    """`filtered` where a few cells do not tell what is kept."""
    code, lanes, cells = row.code, row.sizes.lanes, row.index(row.sizes.cells)

    def place(at: str) -> str:
        return code.mul(at, LANES)

    code.repeat(row.index(0), cells, 1, lambda at: row.store(ask.weigh(row.cell(at)), lanes, place(at)))
    cell, lane = _Looked(
        row,
        ask,
        cells,
        distance=lambda at: ask.distances(row.cell(at)),
        weight=lambda at: row.load(lanes, place(at)),
        keep=lambda at, weights: row.store(weights, lanes, place(at)),
    ).draw()
    return cell * LANES + lane


def _choose(row: Row, ask: Ask) -> tuple[Word, Word]:
    """Note down the cells with a token of at most `within` steps: those steps, and how many cells these are."""
    code, xp, s = row.code, row.xp, row.sizes
    vectors = row.index(s.top_vectors)

    def near(at: str) -> str:
        return code.add(code.mul(at, LANES), NEAREST)

    def note(at: str) -> None:
        tops = row.vector(s.tops, at)
        # What fills the last vector up is no cell: nothing of the row lies there.
        row.store(xp.where(tops > -math.inf, ask.steps(ask.distances(tops)), NOWHERE), s.noted, near(at))

    def halve(_: str, words: list[Word]) -> list[Word]:
        within, step = words
        more = within + step
        few = row.count(vectors, lambda at: row.load(s.noted, near(at)) <= more) <= CELLS
        return [xp.where(few, more, within), step >> 1]

    def look(at: str, words: list[Word]) -> list[Word]:
        def one(lane: str, words: list[Word]) -> list[Word]:
            cell = code.add(code.mul(at, LANES), lane)
            row.store(row.place(cell), s.noted, xp.minimum(words[0], CELLS).index())  # the last place is nobody's
            return [words[0] + (row.load(s.noted, code.add(cell, NEAREST), 0) <= within).astype("i32")]

        found = (row.load(s.noted, near(at)) <= within).astype("i32").reduce("add")
        return [xp.choose(found > 0, lambda: xp.loop(row.index(0), row.index(LANES), words, one)[0], lambda: words[0])]

    code.repeat(row.index(0), vectors, 1, note)
    start = [row.number(0), row.number(1 << FIRST)]
    within, _ = xp.loop(row.index(0), row.index(FIRST - LAST + 1), start, halve)
    (total,) = xp.loop(row.index(0), vectors, [row.number(0)], look)
    return within, total


@dataclass(frozen=True, slots=True)
class _Looked:
    """The cells that are looked at: `count` vectors of distances and weights. The filters take weights away."""

    row: Row
    ask: Ask
    count: str
    distance: Callable[[str], Word]
    weight: Callable[[str], Word]
    keep: Callable[[str, Word], None]

    def decided(self, within: Word) -> Word:
        """Where these tell all that the filters keep, as in `workers.sampling.top_candidates`; before anything is taken
        away."""
        row, ask = self.row, self.ask
        inside = row.count(self.count, lambda at: self._steps(at) <= within)
        share = mass_of(self._sum(lambda at: self._steps(at) <= within))
        by_top_k = (ask.top_k > 0) & (ask.top_k <= inside)
        by_top_p = ask.by_share & (share >= ask.top_p * mass_of(ask.all()))
        beyond = ask.weights(within + 1)
        by_min_p = (beyond < self._least()) & (ask.top_k.equals(0) | (ask.top_p >= 1.0))
        return by_top_k | by_top_p | by_min_p | (within >= FAR)

    def draw(self) -> tuple[Word, Word]:
        """The vector and the lane of the token."""
        row, ask, xp = self.row, self.ask, self.row.xp
        nearest = xp.choose(ask.top_k > 0, self._nearest, lambda: row.number(-1))
        left = self._take(lambda at: self.distance(at).view("i32") <= nearest)
        wanted = ask.top_p * mass_of(xp.choose(ask.top_k > 0, lambda: left, ask.all))
        likely = xp.choose(ask.top_p >= 1.0, lambda: row.number(FAR), lambda: self._likely(wanted))
        least = self._least()
        total = self._take(lambda at: (self._steps(at) <= likely) & (self.weight(at) >= least))
        return row.search_lane(ask.point(total), self.count, self.weight)

    def _nearest(self) -> Word:
        """The bits of the k-th smallest distance, as `workers.sampling.sample` has it; all ones where there are
        fewer."""
        row, xp = self.row, self.row.xp

        def halve(_: str, words: list[Word]) -> list[Word]:
            found, step = words
            limit = found + step - 1
            near = row.count(self.count, lambda at: self.distance(at).view("i32") <= limit)
            return [xp.where(near < self.ask.top_k, found + step, found), step >> 1]

        start = [row.number(0), row.number(1 << 30)]
        return xp.loop(row.index(0), row.index(31), start, halve)[0]

    def _likely(self, wanted: Word) -> Word:
        """The smallest number of steps at which the tokens so far have the wanted mass."""
        row, xp = self.row, self.row.xp

        def halve(_: str, words: list[Word]) -> list[Word]:
            low, high = words
            middle = (low + high) >> 1
            held = mass_of(self._sum(lambda at: self._steps(at) <= middle)) >= wanted
            low, high = xp.where(held, low, middle + 1), xp.where(held, middle, high)
            return [xp.minimum(low, high), high]

        start = [row.number(0), row.number(FAR)]
        return xp.loop(row.index(0), row.index(FAR.bit_length()), start, halve)[1]

    def _least(self) -> Word:
        """The smallest weight that min_p keeps."""
        return (self.ask.min_p * WEIGHT_ONE).astype("i32")

    def _steps(self, at: str) -> Word:
        return self.ask.steps(self.distance(at))

    def _sum(self, holds: Callable[[str], Word]) -> Word:
        return self.row.sum(self.count, lambda at: self.row.xp.where(holds(at), self.weight(at), 0))

    def _take(self, holds: Callable[[str], Word]) -> Word:
        """Take the weights away where it does not hold; the sum of the rest."""

        def left(at: str) -> Word:
            weights = self.row.xp.where(holds(at), self.weight(at), 0)
            self.keep(at, weights)
            return weights

        return self.row.sum(self.count, left)
