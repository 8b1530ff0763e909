"""The rows of a step that a recurrent state takes in, one after the other, and where the state lies."""

from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import live_rows
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.value import Value

RowBody = Callable[[Value, Value], None]
"""Writes the code for a row: its number in the step, and where the layer's state of its slot begins."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """The rows of a step, and the states of all slots."""

    batch: int
    tokens: int
    """Rows of each sequence."""
    slots: int
    slot_values: int
    """Values of the state of one slot, all layers together."""
    attended: int
    """A row whose cache row is this or more is padding: it changes no state."""

    @property
    def rows(self) -> int:
        return self.batch * self.tokens


class StateRows:
    """The operands by which kernels find states: slots int32 [batch], rows int32 [batch, tokens], offset int32 [1] of
    the layer in a slot's state, state f32 [slots, slot_values] (, live i32 [1])."""

    def __init__(self, shape: StateShape, kernel: Kernel, *, live: bool) -> None:
        self._shape = shape
        self._slots = kernel.input("slots", (shape.batch,), "i32")
        self._rows = kernel.input("rows", (shape.batch, shape.tokens), "i32")
        self._offset = kernel.input("offset", (1,), "i32")
        values = (shape.slots, shape.slot_values)
        self.state: Memory = kernel.in_place("state", values, "f32", (shape.slots * shape.slot_values,))
        self._live = kernel.input("live", (1,), "i32") if live else None

    def write(self, code: Code, body: RowBody) -> None:
        """Write `body` for every row that is not padding, in order. Several sequences may be of one slot."""
        shape = self._shape
        sequences = code.index(shape.batch)
        if self._live is not None:
            sequences = live_rows(self._live, shape.rows) // shape.tokens
        offset = self._offset.load_index([0])

        def sequence(number: Value) -> None:
            base = self._slots.load_index([number]) * shape.slot_values + offset

            def token(index: Value) -> None:
                there = self._rows.load_index([number, index]) < shape.attended
                code.when(there, lambda: body(number * shape.tokens + index, base))

            code.repeat(0, shape.tokens, token)

        code.repeat(0, sequences, sequence)
