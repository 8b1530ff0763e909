"""The recurrent states of all slots in one buffer on the device."""

from collections import Counter

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.buffers import Input
from workers.iree.device.device import Device


class SlotStateBuffer:
    """The states of each slot, and which of them is the current one. A slot without a state has zeros, as a new one.

    Rows of prompts change the current state in place, and so does the only row of a slot in a decode step. Of several
    rows, each leaves it as it is and writes the next one of the slot's, so that the rows of the step can be taken back.
    """

    def __init__(self, device: Device, plan: GraphPlan) -> None:
        """Allocate zeros. Raises `DeviceError` when there is no room."""
        self._device = device
        self._buffer = device.zeros(plan.state_shape, "float32")
        self._versions = plan.state_versions
        self._current = [0] * plan.cache.slots
        self._used: list[set[int]] = [set() for _ in range(plan.cache.slots)]
        """The places of each slot that may have other values than zeros."""
        self.state_bytes = plan.config.state_bytes
        """Bytes of one state."""
        self._has_places = plan.has_places
        self._places: dict[int, Input] = {}
        """The places of a prompt's rows, by the rows of the graph."""

    @property
    def view(self) -> rt.HalBufferView:
        """The argument of graphs."""
        return self._buffer.view

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def place(self, slot: int, back: int = 0) -> int:
        """Return where the state of a slot before its last `back` rows is."""
        return slot * self._versions + (self._current[slot] - back) % self._versions

    def prompt_places(self, slots: NDArray[np.int32], there: NDArray[np.bool_]) -> list[rt.HalBufferView]:
        """Return the argument with the places of rows, those of each slot side by side, which change states in place.

        `slots` are [batch]; rows that are not `there` [batch, tokens] are padding. Empty on a device whose graphs take
        none.
        """
        used = np.array([self._use(slot) for slot in slots.tolist()])
        if not self._has_places:
            return []
        places = np.where(there, used[:, None], -1).reshape(-1)
        if len(places) not in self._places:
            self._places[len(places)] = self._device.input((2, len(places)), "int32")
        return [self._places[len(places)].put(np.stack([places, places]))]

    def decode_places(self, slots: list[int], into: Input | None, *, in_place: bool) -> list[rt.HalBufferView]:
        """Return the argument with the places of a step's rows, and make the states after the rows the current ones.

        Rows beyond are padding. The state before the only row of a slot is overwritten, as writing elsewhere takes half
        of the time again; with `in_place` those before all rows are.
        """
        if into is None:
            for slot in slots:
                self._use(slot)
            return []
        into.array[...] = -1
        rows = Counter(slots)
        for index, slot in enumerate(slots):
            into.array[0, index] = self.place(slot)
            if not in_place and rows[slot] > 1:
                self._current[slot] = (self._current[slot] + 1) % self._versions
            into.array[1, index] = self._use(slot)
        return [into.ready()]

    def take_back(self, slot: int, rows: int) -> None:
        """Make the state before the last rows of a decode step the current one."""
        self._current[slot] = (self._current[slot] - rows) % self._versions

    def read(self, slot: int, back: int = 0) -> memoryview:
        """Return a copy of a slot's state before its last `back` rows."""
        return np.array(self._rows()[self.place(slot, back)]).data.cast("B")

    def write(self, slot: int, state: bytes | memoryview) -> None:
        """Write what `read` has returned."""
        self._replace(self._use(slot), np.frombuffer(state, np.uint32))

    def copy(self, source: int, target: int, back: int) -> None:
        """Copy the state of a slot before its last `back` rows to another one."""
        if source == target:
            self.take_back(source, back)
            return
        self._replace(self._use(target), self._rows()[self.place(source, back)])

    def clear(self, slot: int) -> None:
        """Give a slot the initial state, and leave nothing of its other states."""
        for place in self._used[slot]:
            self._replace(place, np.zeros(self.state_bytes // 4, np.uint32))
        self._used[slot].clear()

    def _use(self, slot: int) -> int:
        """Return where the current state of a slot is, to be written."""
        place = self.place(slot)
        self._used[slot].add(place)
        return place

    def _rows(self) -> NDArray[np.uint32]:
        """Return the bits of all states; those of a device that the host does not share memory with are a copy."""
        window = self._buffer.window
        whole: NDArray[np.uint32] = self._device.window(self.view) if window is None else window
        return whole.view(np.uint32)

    def _replace(self, place: int, state: NDArray[np.uint32]) -> None:
        if self._buffer.window is not None:
            self._buffer.window[place] = state
            return
        rows = np.array(self._rows())
        rows[place] = state
        self._buffer.view = self._device.upload(rows, "float32")
