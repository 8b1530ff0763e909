"""Tokens from logits in three kernels, for any number of rows: `workers.sampling.sample.sample`, bitwise identical.

The definition's integers are computed by the definition's own functions (`workers.sampling.fixed_point`,
`workers.sampling.noise`), through `workers.iree.kernels.ir.array_namespace`. What differs is the order of work: each
row is by itself, and what its parameters do not need is not computed.
"""

import math

from workers.iree.kernels.ir.memory import ROWS
from workers.iree.kernels.ir.mlir_types import LANES, tensor
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.sampling.filters import filtered
from workers.iree.kernels.sampling.logits_row import CELLS_PER_BLOCK, LogitsRow, Operand, RowSampling, SamplingShape
from workers.sampling.fixed_point import is_finite

BLOCKS_PER_WORKGROUP = 128
"""Blocks that one workgroup of the first two kernels reads."""


def sampling_module(name: str, vocab: int) -> str:
    """Return a module with one function: logits f32 [rows, vocab], parameters int32 [rows, PARAMETERS] -> tokens int32
    [rows].

    The tokens are those of `workers.sampling.sample.sample`.
    """
    s = SamplingShape(vocab)
    given, words, tops, sums = (_tensor(each) for each in (s.logits, s.parameters, s.tops, s.sums))
    results = ", ".join(_tensor(each) for each in (s.tokens, s.candidates, s.lanes))
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


def _workgroups(s: SamplingShape) -> int:
    return -(-s.blocks // BLOCKS_PER_WORKGROUP)


def _tops(s: SamplingShape) -> str:
    """The highest logit of each cell; NaN counts as +inf."""
    row = LogitsRow("baton_tops", _workgroups(s), s, [s.logits], [s.tops])
    code, xp = row.code, row.xp
    low = row.kernel.workgroup * (BLOCKS_PER_WORKGROUP * CELLS_PER_BLOCK)
    high = (low + BLOCKS_PER_WORKGROUP * CELLS_PER_BLOCK).minimum(s.top_vectors * LANES)
    end = high.minimum(s.cells)

    def top(cell: Value) -> None:
        value = row.cell(cell)
        value = xp.where(value.equals(value), value, math.inf)
        row.store(value.reduce("maxnumf", "nnan"), s.tops, cell)

    code.repeat(low, end, top)
    code.repeat(end, high, lambda cell: row.store(xp.array(-math.inf, "f32"), s.tops, cell))
    return row.kernel.function()


def _sums(s: SamplingShape) -> str:
    """The weights of all tokens, summed by blocks, for rows that need them."""
    row = LogitsRow("baton_sums", _workgroups(s), s, [s.logits, s.parameters, s.tops], [s.sums])
    code, sampling = row.code, RowSampling(row)
    low = row.kernel.workgroup * BLOCKS_PER_WORKGROUP
    high = (low + BLOCKS_PER_WORKGROUP).minimum(s.sum_vectors * LANES)

    def block(at: Value) -> None:
        first = at * CELLS_PER_BLOCK
        last = (first + CELLS_PER_BLOCK).minimum(s.cells)
        (total,) = code.loop(
            first, last, [row.vector_of(0)], lambda cell, sums: [sums[0] + sampling.weights_of(row.cell(cell))]
        )
        row.store(total.reduce("add"), s.sums, at)

    needed = (sampling.temperature > 0.0) & (sampling.unfiltered | sampling.top_p_of_all)
    code.when(needed, lambda: code.repeat(low, high, block))  # behind the last cell there is nothing to sum
    return row.kernel.function()


def _tokens(s: SamplingShape) -> str:
    """The tokens, and the memory that finding them takes."""
    takes = [s.logits, s.parameters, s.tops, s.sums]
    row = LogitsRow("baton_tokens", 1, s, takes, [s.tokens, s.candidates, s.lanes])
    sampling, choose = RowSampling(row), row.code.choose

    def token() -> Value:
        return choose(sampling.greedy, lambda: _greedy(row, sampling), sampled)

    def sampled() -> Value:
        return choose(sampling.unfiltered, lambda: _unfiltered(row, sampling), lambda: filtered(row, sampling))

    return row.finish(choose(is_finite(sampling.best), token, lambda: row.number(-1)))


def _greedy(row: LogitsRow, sampling: RowSampling) -> Value:
    """Return the first of the most likely tokens."""
    code, xp, none = row.code, row.xp, row.shape.cells
    places = code.iota()

    def earlier(at: Value, first: list[Value]) -> list[Value]:
        here = places + row.place(at * LANES)
        high = row.vector(row.shape.tops, at) >= sampling.best
        return [xp.minimum(xp.where(high, here, none), first[0])]

    (cells,) = code.loop(0, row.shape.top_vectors, [row.vector_of(none)], earlier)
    cell = cells.reduce("minui")
    lane = xp.where(row.cell(cell.astype("index")) >= sampling.best, places, LANES).reduce("minui")
    return cell * LANES + lane


def _unfiltered(row: LogitsRow, sampling: RowSampling) -> Value:
    """Return a token of all, as no filter is set."""
    code, s = row.code, row.shape
    point = sampling.point(sampling.total())
    block, point = row.search(point, s.blocks, lambda at: row.load(s.sums, at))
    first = row.xp.minimum(block, s.blocks - 1).astype("index") * CELLS_PER_BLOCK
    rest = code.index(s.cells) - first

    def weights(at: Value) -> Value:
        return sampling.weights_of(row.cell(first + at))

    cell, lane = row.search_lane(point, rest.minimum(CELLS_PER_BLOCK), weights)
    return (row.place(first) + cell) * LANES + lane
