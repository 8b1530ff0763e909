"""Tokens from logits in three kernels, for any number of rows: `workers.sampling.sample.sample`, bitwise identical.

The definition's integers are computed by the definition's own functions (`workers.sampling.fixed_point`,
`workers.sampling.noise`), through `workers.iree.kernels.ir.array_namespace`. What differs is the order of work: each
row is by itself, and what it does not ask for is not computed.
"""

import math

from workers.iree.kernels.ir.memory import ROWS
from workers.iree.kernels.ir.mlir_types import LANES, tensor
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.sampling.filters import filtered
from workers.iree.kernels.sampling.logits_row import PER_BLOCK, Ask, Operand, Row, Sizes
from workers.sampling.fixed_point import is_finite

PART = 128
"""Blocks that one workgroup of the first two kernels reads."""


def draw(name: str, vocab: int) -> str:
    """Return a module with one function: logits f32 [rows, vocab], parameters int32 [rows, PARAMETERS] -> tokens int32
    [rows].

    The tokens are those of `workers.sampling.sample.sample`.
    """
    s = Sizes(vocab)
    given, words, tops, sums = (_tensor(each) for each in (s.logits, s.parameters, s.tops, s.sums))
    results = ", ".join(_tensor(each) for each in (s.tokens, s.noted, s.lanes))
    tokens = _tensor(s.tokens)
    return f"""module @baton {{
{_tops(s)}
{_sums(s)}
{_tokens(s)}
  func.func public @{name}(%logits: {given}, %parameters: {words}) -> {tokens} {{
    %c0 = arith.constant 0 : index
    %rows = tensor.dim %logits, %c0 : {given}
    %tops = func.call @baton_tops(%rows, %logits) : (index, {given}) -> {tops}
    %sums = func.call @baton_sums(%rows, %logits, %parameters, %tops) : (index, {given}, {words}, {tops}) -> {sums}
    %out:3 = func.call @baton_tokens(%rows, %logits, %parameters, %tops, %sums)
      : (index, {given}, {words}, {tops}, {sums}) -> ({results})
    return %out#0 : {tokens}
  }}
}}"""


def _tensor(operand: Operand) -> str:
    return tensor(["?" if size == ROWS else size for size in operand.shape], operand.element)


def _parts(s: Sizes) -> int:
    return -(-s.blocks // PART)


def _tops(s: Sizes) -> str:
    """The highest logit of each cell; NaN counts as +inf."""
    row = Row("baton_tops", _parts(s), s, [s.logits], [s.tops])
    code, xp = row.code, row.xp
    low = row.kernel.workgroup * (PART * PER_BLOCK)
    high = (low + PART * PER_BLOCK).minimum(s.top_vectors * LANES)
    end = high.minimum(s.cells)

    def top(cell: Value) -> None:
        value = row.cell(cell)
        value = xp.where(value.equals(value), value, math.inf)
        row.store(value.reduce("maxnumf", "nnan"), s.tops, cell)

    code.repeat(low, end, top)
    code.repeat(end, high, lambda cell: row.store(xp.array(-math.inf, "f32"), s.tops, cell))
    return row.kernel.function()


def _sums(s: Sizes) -> str:
    """The weights of all tokens, summed by blocks, for rows that need them."""
    row = Row("baton_sums", _parts(s), s, [s.logits, s.parameters, s.tops], [s.sums])
    code, ask = row.code, Ask(row)
    low = row.kernel.workgroup * PART
    high = (low + PART).minimum(s.sum_vectors * LANES)

    def block(at: Value) -> None:
        first = at * PER_BLOCK
        last = (first + PER_BLOCK).minimum(s.cells)
        (total,) = code.loop(first, last, [row.vector_of(0)], lambda cell, sums: [sums[0] + ask.weigh(row.cell(cell))])
        row.store(total.reduce("add"), s.sums, at)

    needed = (ask.temperature > 0.0) & (ask.free | ask.by_share)
    code.when(needed, lambda: code.repeat(low, high, block))  # behind the last cell there is nothing to sum
    return row.kernel.function()


def _tokens(s: Sizes) -> str:
    """The tokens, and what was noted down on the way to them."""
    takes = [s.logits, s.parameters, s.tops, s.sums]
    row = Row("baton_tokens", 1, s, takes, [s.tokens, s.noted, s.lanes])
    ask, choose = Ask(row), row.code.choose

    def token() -> Value:
        return choose(ask.greedy, lambda: _highest(row, ask), sampled)

    def sampled() -> Value:
        return choose(ask.free, lambda: _any(row, ask), lambda: filtered(row, ask))

    return row.finish(choose(is_finite(ask.best), token, lambda: row.number(-1)))


def _highest(row: Row, ask: Ask) -> Value:
    """Return the first of the most likely tokens."""
    code, xp, none = row.code, row.xp, row.sizes.cells
    places = code.iota()

    def earlier(at: Value, first: list[Value]) -> list[Value]:
        here = places + row.place(at * LANES)
        high = row.vector(row.sizes.tops, at) >= ask.best
        return [xp.minimum(xp.where(high, here, none), first[0])]

    (cells,) = code.loop(0, row.sizes.top_vectors, [row.vector_of(none)], earlier)
    cell = cells.reduce("minui")
    lane = xp.where(row.cell(cell.astype("index")) >= ask.best, places, LANES).reduce("minui")
    return cell * LANES + lane


def _any(row: Row, ask: Ask) -> Value:
    """Return a token of all."""
    code, s = row.code, row.sizes
    point = ask.point(ask.all())
    block, point = row.search(point, s.blocks, lambda at: row.load(s.sums, at))
    first = row.xp.minimum(block, s.blocks - 1).astype("index") * PER_BLOCK
    rest = code.index(s.cells) - first

    def weights(at: Value) -> Value:
        return ask.weigh(row.cell(first + at))

    cell, lane = row.search_lane(point, rest.minimum(PER_BLOCK), weights)
    return (row.place(first) + cell) * LANES + lane
