"""Mamba-2's recurrence, row after row (https://arxiv.org/abs/2405.21060)."""

import math
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Mamba2
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.operations import exp, fma
from workers.iree.kernels.ir.partition import partition_count
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.recurrent.state_rows import StateRows, StateShape
from workers.iree.kernels.rowwise.activations import silu, softplus

COLUMNS = 4 * LANES
"""The most lanes of a head that an item computes: they share what is loaded of B and C."""
CHAINS = 8
"""Sums that an item adds to in turn, so that one addition does not wait for the one before: those of each lane are
several, and their order is part of the result."""


@dataclass(frozen=True, slots=True)
class SelectiveState:
    """Mamba-2's recurrence for the rows of a step."""

    shape: StateShape
    sizes: Mamba2
    threads: int
    scattered: bool = False
    """Rows are of different slots, whose states are in memory: the next one is prefetched."""

    @property
    def columns(self) -> int:
        """Lanes of a head that an item computes."""
        return math.gcd(self.sizes.head_dim, COLUMNS)

    @property
    def sums(self) -> int:
        """Sums of each lane."""
        return CHAINS * LANES // self.columns

    @property
    def items(self) -> int:
        """Items that threads may take: some lanes of a head, of all rows."""
        return self.sizes.inner // self.columns


def selective_state(name: str, kind: SelectiveState, *, live: bool = False) -> str:
    """x f32 [rows, channels]: inputs, B and C; projected f32 [rows, projected]: gates, the values that x is made of,
    and steps; decay, bias and skip f32 [heads], and the operands of `StateRows` -> f32 [rows, inner], and the state.

    Of a layer's state it takes what is behind the convolution's: for each head a matrix S, its columns in groups of
    `SelectiveState.columns`, f32 [heads, groups, state, columns]. A row with the inputs x, the gates z and the step d
    of a head does

        t = softplus(d + bias), within the limits;  S = S * exp(-exp(decay) * t) + B (t x);
        o = (C S + skip * x) * silu(z)

    Sums over the state are in `SelectiveState.sums` parts. `head_dim` and `state` are multiples of 16.
    """
    kernel = Kernel(name, partition_count(kind.items, kind.threads))
    item = _Lanes(kind, kernel, live=live)
    kernel.code.repeat(*kernel.partition.even_range(kernel.code.index(kind.items)), item.write)
    return kernel.function()


class _Lanes:
    """The memory that is read and written, and the code for an item, which is some lanes of a head."""

    def __init__(self, kind: SelectiveState, kernel: Kernel, *, live: bool) -> None:
        rows, sizes = kind.shape.rows, kind.sizes
        self._kind, self._code = kind, kernel.code
        self._x = kernel.input("x", (rows, sizes.channels), "f32")
        self._projected = kernel.input("projected", (rows, sizes.projected), "f32")
        self._head_decay, self._bias, self._skip = (
            kernel.input(name, (sizes.heads,), "f32") for name in ("decay", "bias", "skip")
        )
        self._states = StateRows(kind.shape, kernel, live=live)
        self._out = kernel.output("out", (rows, sizes.inner), "f32")
        self._times, self._decays = (self._code.allocate((-(-rows // LANES) * LANES,), "f32") for _ in range(2))
        self._following: Value | None = None

    def write(self, number: Value) -> None:
        """Write the code for an item, of all rows."""
        code, sizes, columns = self._code, self._kind.sizes, self._kind.columns
        head, size = number // (sizes.head_dim // columns), sizes.state * columns
        matrix = number * size + (sizes.taps - 1) * sizes.channels
        skip = self._skip.load([head]).broadcast()
        self._write_factors(head)

        def row(at: Value, before: Value, after: Value) -> None:
            if self._kind.scattered:
                self._following = self._states.following(code, at, size) + matrix
            time, decay = (each.load([at]).broadcast() for each in (self._times, self._decays))
            self._row(at, (before + matrix, after + matrix), (number, head), time, decay, skip)

        self._states.write(code, row)

    def _write_factors(self, head: Value) -> None:
        """Write the steps and the decays of all rows of a head: of 16 rows at a time, so that no row waits for them."""
        code, sizes = self._code, self._kind.sizes
        rate, bias = exp(self._head_decay.load([head]).broadcast()), self._bias.load([head]).broadcast()

        def row(at: Value) -> None:
            self._times.store(self._projected.load([at, head + (sizes.inner + sizes.channels)]), [at])

        def several(at: Value) -> None:
            least, most = sizes.step_limit
            time = softplus(self._times.load_vector([at]) + bias)
            time = time.maximum(least) if least else time
            time = time if math.isinf(most) else time.minimum(most)
            self._times.store(time, [at])
            self._decays.store(exp(-(rate * time)), [at])

        code.repeat(0, self._states.count(code), row)
        code.repeat(0, self._states.count(code), several, LANES)

    def _row(
        self,
        at: Value,
        matrices: tuple[Value, Value],
        place: tuple[Value, Value],
        time: Value,
        decay: Value,
        skip: Value,
    ) -> None:
        """Update an item's columns of S by a row, from one place to another, and write what its C reads from them."""
        sizes, columns = self._kind.sizes, self._kind.columns
        number, head = place
        lanes = [number * columns + lane for lane in range(0, columns, LANES)]
        inputs = [self._x.load_vector([at, lane]) for lane in lanes]
        read = self._update(at, matrices, head // (sizes.heads // sizes.groups), decay, [x * time for x in inputs])
        for lane, x, total in zip(lanes, inputs, read, strict=True):
            gate = silu(self._projected.load_vector([at, lane]))
            self._out.store(fma(skip, x, total) * gate, [at, lane])

    def _update(
        self, at: Value, matrices: tuple[Value, Value], group: Value, decay: Value, added: list[Value]
    ) -> list[Value]:
        """Store S * decay + B added, and return C times it."""
        sizes, columns, sums = self._kind.sizes, self._kind.columns, self._kind.sums
        b = group * sizes.state + sizes.inner
        c = b + sizes.groups * sizes.state

        following = self._following

        def add(index: Value, totals: list[Value]) -> list[Value]:
            out: list[Value] = []
            if following is not None:
                for line in range(0, sums * columns, LANES):
                    self._states.state.prefetch([following + index * columns + line])
            for part in range(sums):
                weight, reads = (self._x.load([at, first + index + part]).broadcast() for first in (b, c))
                before, after = (matrix + (index + part) * columns for matrix in matrices)
                for lane, value in zip(range(0, columns, LANES), added, strict=True):
                    new = fma(weight, value, self._states.state.load_vector([before + lane]) * decay)
                    self._states.state.store(new, [after + lane])
                    out.append(fma(new, reads, totals[len(out)]))
            return out

        totals = self._code.loop(0, sizes.state, [self._code.floats(0.0)] * CHAINS, add, sums)
        vectors = columns // LANES
        return [_halved([totals[part * vectors + lane] for part in range(sums)]) for lane in range(vectors)]


def _halved(sums: list[Value]) -> Value:
    """Add sums in pairs."""
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]
