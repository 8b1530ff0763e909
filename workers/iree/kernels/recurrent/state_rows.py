"""The rows of a step that a recurrent state takes in, one after the other, and where the states lie."""

from collections.abc import Callable
from dataclasses import dataclass

from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import live_rows
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.value import Value

RowBody = Callable[[Value, Value, Value], None]
"""Writes the code for a row: its number in the step, and where the layer's state begins before and after it."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """The rows of a step, and the states."""

    rows: int
    states: int
    state_values: int
    """Values of a state, all layers together."""


class StateRows:
    """The operands by which kernels find states: places int32 [2, rows] of the states before and after each row, which
    are negative for padding, offset int32 [1] of the layer in a state, state f32 [states, state_values] (, live
    i32 [1])."""

    def __init__(self, shape: StateShape, kernel: Kernel, *, live: bool) -> None:
        self._shape = shape
        self._places = kernel.input("places", (2, shape.rows), "i32")
        self._offset = kernel.input("offset", (1,), "i32")
        values = (shape.states, shape.state_values)
        self.state: Memory = kernel.in_place("state", values, "f32", (shape.states * shape.state_values,))
        self._live = kernel.input("live", (1,), "i32") if live else None

    def count(self, code: Code) -> Value:
        """Return how many rows there are, an index: padding may be among them."""
        return code.index(self._shape.rows) if self._live is None else live_rows(self._live, self._shape.rows)

    def write(self, code: Code, body: RowBody) -> None:
        """Write `body` for every row that is not padding, in order. Several may be of one slot."""
        width, offset = self._shape.state_values, self._offset.load_index([0])

        def row(number: Value) -> None:
            before, after = (self._places.load_index([side, number]) for side in range(2))
            # A negative number is a large one, as indices have no sign.
            code.when(
                before < self._shape.states, lambda: body(number, before * width + offset, after * width + offset)
            )

        code.repeat(0, self.count(code), row)

    def following(self, code: Code, row: Value, item: int) -> Value:
        """Return where the state that is read next begins, if an item of `item` values is computed for all rows, and
        the next item for all rows after it. It is no place in memory if the next row is padding."""
        again = (row + 1).equals(self.count(code))
        number = again.select(code.index(0), row + 1)
        place = self._places.load_index([0, number]) * self._shape.state_values + self._offset.load_index([0])
        return place + again.select(code.index(item), code.index(0))
