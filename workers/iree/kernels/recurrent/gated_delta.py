"""The gated delta rule, row after row (https://arxiv.org/abs/2412.06464)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import GatedDelta
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import exp, fma, sqrt
from workers.iree.kernels.ir.partition import partition_count
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.recurrent.state_rows import StateRows, StateShape
from workers.iree.kernels.rowwise.activations import softplus

EPS = 1e-6
"""Added to the squared lengths of queries and keys."""
COLUMNS = 2 * LANES
"""The most lanes of a value head that an item computes: they share what is loaded of queries and keys."""
SUMS = 4
"""Sums of each lane, so that one addition does not wait for the one before; their order is part of the result."""


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """The gated delta rule for the rows of a step."""

    shape: StateShape
    sizes: GatedDelta
    threads: int
    scattered: bool = False
    """Rows are of different slots, whose states are in memory: the next one is prefetched."""

    @property
    def columns(self) -> int:
        """Lanes of a value head that an item computes."""
        return math.gcd(self.sizes.value_dim, COLUMNS)

    @property
    def items(self) -> int:
        """Items that threads may take: some lanes of a value head, of all rows."""
        return self.sizes.values // self.columns


def gated_delta(name: str, kind: DeltaRule, *, live: bool = False) -> str:
    """x f32 [rows, channels]: queries, keys and values; gates f32 [rows, 2 * value_heads]: of the updates, then of the
    decays; decay and bias f32 [value_heads], and the operands of `StateRows` -> f32 [rows, values], and the state.

    Of a layer's state it takes what is behind the convolution's: for each value head a matrix S, its columns in groups
    of `DeltaRule.columns`, f32 [value_heads, groups, key_dim, columns]. With q and k of length 1, a row does

        S = S * exp(-exp(decay) * softplus(a + bias));  S = S + k (v - k S) sigmoid(b);  o = q S / sqrt(key_dim)

    where a and b are its gates. Sums over key_dim are in `SUMS` parts. `key_dim` and `value_dim` are multiples of 16.
    """
    kernel = Kernel(name, partition_count(kind.items, kind.threads))
    item = _Item(kind, kernel, live=live)
    kernel.code.repeat(*kernel.partition.even_range(kernel.code.index(kind.items)), item.write)
    return kernel.function()


class _Item:
    """The memory that is read and written, and the code for an item."""

    def __init__(self, kind: DeltaRule, kernel: Kernel, *, live: bool) -> None:
        rows, sizes = kind.shape.rows, kind.sizes
        self._kind, self._code = kind, kernel.code
        self._x = kernel.input("x", (rows, sizes.channels), "f32")
        self._gates = kernel.input("gates", (rows, 2 * sizes.value_heads), "f32")
        self._decay = kernel.input("decay", (sizes.value_heads,), "f32")
        self._bias = kernel.input("bias", (sizes.value_heads,), "f32")
        self._states = StateRows(kind.shape, kernel, live=live)
        self._out = kernel.output("out", (rows, sizes.values), "f32")
        each = (-(-rows // LANES) * LANES,)
        self._rates, self._decays, self._queries, self._keys = (self._code.allocate(each, "f32") for _ in range(4))
        self._following: Value | None = None

    def write(self, number: Value) -> None:
        """Write the code for an item, of all rows."""
        code, sizes, columns = self._code, self._kind.sizes, self._kind.columns
        head = number // (sizes.value_dim // columns)
        query = head // (sizes.value_heads // sizes.key_heads) * sizes.key_dim
        matrix = number * (sizes.key_dim * columns) + (sizes.taps - 1) * sizes.channels
        self._write_factors(head, query)

        def row(at: Value, before: Value, after: Value) -> None:
            if self._kind.scattered:
                self._following = self._states.following(code, at, sizes.key_dim * columns) + matrix
            self._row(at, (before + matrix, after + matrix), number * columns, query)

        self._states.write(code, row)

    def _write_factors(self, head: Value, query: Value) -> None:
        """Write the rates of updates, the decays, and the inverse lengths of queries and keys of all rows: of 16 rows
        at a time, so that no row waits for them."""
        code, sizes = self._code, self._kind.sizes
        rate, bias = exp(self._decay.load([head]).broadcast()), self._bias.load([head]).broadcast()

        def row(at: Value) -> None:
            self._rates.store(self._gates.load([at, head]), [at])
            self._decays.store(self._gates.load([at, head + sizes.value_heads]), [at])
            self._queries.store(_squares(code, self._x, at, query, sizes.key_dim), [at])
            self._keys.store(_squares(code, self._x, at, query + sizes.keys, sizes.key_dim), [at])

        def several(at: Value) -> None:
            self._rates.store(1.0 / (exp(-self._rates.load_vector([at])) + 1.0), [at])
            self._decays.store(exp(-(rate * softplus(self._decays.load_vector([at]) + bias))), [at])
            for lengths in (self._queries, self._keys):
                lengths.store(1.0 / sqrt(lengths.load_vector([at]) + EPS), [at])

        code.repeat(0, self._states.count(code), row)
        code.repeat(0, self._states.count(code), several, LANES)

    def _row(self, at: Value, matrices: tuple[Value, Value], column: Value, query: Value) -> None:
        """Update an item's columns of S by a row, from one place to another, and write what its query reads from
        them."""
        sizes, key = self._kind.sizes, query + self._kind.sizes.keys
        lanes = range(0, self._kind.columns, LANES)
        factors = (self._rates, self._decays, self._queries, self._keys)
        beta, decay, unit_query, unit_key = (each.load([at]).broadcast() for each in factors)
        expected = [total * (decay * unit_key) for total in self._sum(matrices[0], at, key)]
        values = [self._x.load_vector([at, column + lane + 2 * sizes.keys]) for lane in lanes]
        pairs = zip(values, expected, strict=True)
        corrections = [(value - each) * beta * unit_key for value, each in pairs]
        read = self._update(matrices, at, query, decay, corrections)
        factor = unit_query * sizes.key_dim**-0.5
        for lane, total in zip(lanes, read, strict=True):
            self._out.store(total * factor, [at, column + lane])

    def _sum(self, matrix: Value, at: Value, key: Value) -> list[Value]:
        """Return k S of the item's columns, for a key of any length."""
        lanes = range(0, self._kind.columns, LANES)

        def add(index: Value, sums: list[Value]) -> list[Value]:
            self._prefetch(index, 0)
            out: list[Value] = []
            for part in range(SUMS):
                k = self._x.load([at, key + index + part]).broadcast()
                place = matrix + (index + part) * self._kind.columns
                for lane in lanes:
                    out.append(fma(self._states.state.load_vector([place + lane]), k, sums[len(out)]))
            return out

        return self._summed(add)

    def _update(
        self, matrices: tuple[Value, Value], at: Value, query: Value, decay: Value, corrections: list[Value]
    ) -> list[Value]:
        """Store S * decay + k corrections, and return q times it, for a query of any length."""
        lanes, key = range(0, self._kind.columns, LANES), query + self._kind.sizes.keys

        def add(index: Value, sums: list[Value]) -> list[Value]:
            self._prefetch(index, 1)
            out: list[Value] = []
            for part in range(SUMS):
                k, q = (self._x.load([at, first + index + part]).broadcast() for first in (key, query))
                before, after = (matrix + (index + part) * self._kind.columns for matrix in matrices)
                for lane, correction in zip(lanes, corrections, strict=True):
                    new = fma(k, correction, self._states.state.load_vector([before + lane]) * decay)
                    self._states.state.store(new, [after + lane])
                    out.append(fma(new, q, sums[len(out)]))
            return out

        return self._summed(add)

    def _prefetch(self, index: Value, half: int) -> None:
        """Prefetch a share of the matrix that is read next, the first or the second half of which are a loop's."""
        if self._following is None:
            return
        columns = self._kind.columns
        first = self._following + index * (columns // 2) + half * (self._kind.sizes.key_dim * columns // 2)
        for line in range(0, SUMS * columns // 2, LANES):
            self._states.state.prefetch([first + line])

    def _summed(self, add: Callable[[Value, list[Value]], list[Value]]) -> list[Value]:
        """Loop over the lanes of a key, and return the sum of each of the item's vectors."""
        vectors = self._kind.columns // LANES
        zeros = [self._code.floats(0.0)] * (SUMS * vectors)
        sums = self._code.loop(0, self._kind.sizes.key_dim, zeros, add, SUMS)
        return [
            (a + b) + (c + d) for a, b, c, d in zip(*(sums[i * vectors :][:vectors] for i in range(SUMS)), strict=True)
        ]


def _squares(code: Code, x: Memory, row: Value, first: Value, width: int) -> Value:
    """Return the sum of the squares of `width` values of a row."""

    def add(column: Value, sums: list[Value]) -> list[Value]:
        value = x.load_vector([row, first + column])
        return [fma(value, value, sums[0])]

    (squares,) = code.loop(0, width, [code.floats(0.0)], add, LANES)
    return squares.sum_lanes()
