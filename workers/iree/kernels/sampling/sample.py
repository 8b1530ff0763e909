"""Tokens from logits in three dispatches, for any number of rows: `workers.sampling.sample.sample`, to the bit.

The definition's integers are computed by the definition's own functions (`workers.sampling.fixed_point`,
`workers.sampling.noise`), written out by `workers.iree.kernels.ir.array_namespace`. What differs is the order of work:
each row is by itself, and what it does not ask for is not computed.
"""

import math

from workers.iree.kernels.ir.array_namespace import Word
from workers.iree.kernels.ir.builder import LANES
from workers.iree.kernels.ir.executable import dispatch
from workers.iree.kernels.sampling.filters import filtered
from workers.iree.kernels.sampling.logits_row import PER_BLOCK, Ask, Row, Sizes
from workers.sampling.fixed_point import is_finite

PART = 128
"""Blocks that one workgroup of the first two dispatches reads."""


def draw(name: str, vocab: int) -> str:
    """A module with one function: logits f32 [rows, vocab], parameters int32 [rows, PARAMETERS] -> tokens int32 [rows].

    The tokens are those of `workers.sampling.sample.sample`.
    """
    s = Sizes(vocab)
    given, words, tops, sums = (each.outside for each in (s.logits, s.parameters, s.tops, s.sums))
    tokens = ", ".join(each.outside for each in (s.tokens, s.noted, s.lanes))
    return f"""module @baton {{
{_tops(s)}
{_sums(s)}
{_tokens(s)}
  func.func public @{name}(%logits: {given}, %parameters: {words}) -> {s.tokens.outside} {{
    %c0 = arith.constant 0 : index
    %rows = tensor.dim %logits, %c0 : {given}
    %tops = func.call @baton_tops(%rows, %logits) : (index, {given}) -> {tops}
    %sums = func.call @baton_sums(%rows, %logits, %parameters, %tops) : (index, {given}, {words}, {tops}) -> {sums}
    %out:3 = func.call @baton_tokens(%rows, %logits, %parameters, %tops, %sums)
      : (index, {given}, {words}, {tops}, {sums}) -> ({tokens})
    return %out#0 : {s.tokens.outside}
  }}
}}"""


def _parts(s: Sizes) -> int:
    return -(-s.blocks // PART)


def _tops(s: Sizes) -> str:
    """The highest logit of each cell; what is not a number counts as +inf."""
    row = Row(s)
    code, xp = row.code, row.xp
    low = code.mul("%id", PART * PER_BLOCK)
    high = code.least(code.add(low, PART * PER_BLOCK), row.index(s.top_vectors * LANES))
    end = code.least(high, row.index(s.cells))

    def top(cell: str) -> None:
        value = row.cell(cell)
        value = xp.where(value.equals(value), value, math.inf)
        row.store(value.reduce("maxnumf", "nnan"), s.tops, cell)

    code.repeat(low, end, 1, top)
    code.repeat(end, high, 1, lambda cell: row.store(xp.array(-math.inf, "f32"), s.tops, cell))
    return dispatch("baton_tops", [s.logits], [s.tops], _parts(s), code.text())


def _sums(s: Sizes) -> str:
    """The weights of all tokens, summed by blocks, for rows that need them."""
    row = Row(s)
    code, ask = row.code, Ask(row)
    low = code.mul("%id", PART)
    high = code.least(code.add(low, PART), row.index(s.sum_vectors * LANES))

    def block(at: str) -> None:
        first = code.mul(at, PER_BLOCK)
        last = code.least(code.add(first, PER_BLOCK), row.index(s.cells))
        (total,) = row.xp.loop(
            first, last, [row.number(0).spread()], lambda cell, words: [words[0] + ask.weigh(row.cell(cell))]
        )
        row.store(total.reduce("add"), s.sums, at)

    needed = (ask.temperature > 0.0) & (ask.free | ask.by_share)
    code.do(f"scf.if {needed.name} {{")
    code.repeat(low, high, 1, block)  # behind the last cell there is nothing to sum
    code.do("}")
    return dispatch("baton_sums", [s.logits, s.parameters, s.tops], [s.sums], _parts(s), code.text())


def _tokens(s: Sizes) -> str:
    """The tokens, and what was noted down on the way to them."""
    row = Row(s)
    ask, choose = Ask(row), row.xp.choose

    def token() -> Word:
        return choose(ask.greedy, lambda: _highest(row, ask), sampled)

    def sampled() -> Word:
        return choose(ask.free, lambda: _any(row, ask), lambda: filtered(row, ask))

    found = choose(is_finite(ask.best), token, lambda: row.number(-1))
    row.code.do(f"memref.store {found.name}, %tokens[%row] : {s.tokens.inside}")
    inputs = [s.logits, s.parameters, s.tops, s.sums]
    return dispatch("baton_tokens", inputs, [s.tokens, s.noted, s.lanes], 1, row.code.text())


def _highest(row: Row, ask: Ask) -> Word:
    """The first of the most likely tokens."""
    xp, none = row.xp, row.sizes.cells
    places = Word(row.code, row.code.constant(f"dense<{list(range(LANES))}> : vector<{LANES}xi32>"), "i32", LANES)

    def turn(at: str, words: list[Word]) -> list[Word]:
        here = places + row.place(row.code.mul(at, LANES))
        high = row.vector(row.sizes.tops, at) >= ask.best
        return [xp.minimum(xp.where(high, here, none), words[0])]

    (cells,) = xp.loop(row.index(0), row.index(row.sizes.top_vectors), [row.number(none).spread()], turn)
    cell = cells.reduce("minui")
    lane = xp.where(row.cell(cell.index()) >= ask.best, places, LANES).reduce("minui")
    return cell * LANES + lane


def _any(row: Row, ask: Ask) -> Word:
    """A token of all."""
    code, s = row.code, row.sizes
    point = ask.point(ask.all())
    block, point = row.search(point, row.index(s.blocks), lambda at: row.load(s.sums, at, 0))
    first = code.mul(row.xp.minimum(block, s.blocks - 1).index(), PER_BLOCK)
    rest = code.let(f"arith.subi {row.index(s.cells)}, {first} : index")

    def weights(at: str) -> Word:
        return ask.weigh(row.cell(code.add(first, at)))

    cell, lane = row.search_lane(point, code.least(rest, row.index(PER_BLOCK)), weights)
    return (row.place(first) + cell) * LANES + lane
