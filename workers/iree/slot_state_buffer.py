"""The recurrent states of all slots in one buffer on the device."""

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.device import Device


class SlotStateBuffer:
    """The state of each slot, which graphs update in place. A slot that has no state is zeros, as is a new one."""

    def __init__(self, device: Device, plan: GraphPlan) -> None:
        """Allocate zeros. Raises `DeviceError` when there is no room."""
        self._device = device
        self._shape = plan.state_shape
        self._buffer = device.zeros(self._shape, "float32")

    @property
    def view(self) -> rt.HalBufferView:
        """The argument of graphs."""
        return self._buffer.view

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of the state of one slot."""
        return self.nbytes // self._shape[0]

    def read(self, slot: int) -> memoryview:
        """Return a copy of a slot's state."""
        return np.array(self._rows()[slot]).data.cast("B")

    def write(self, slot: int, state: bytes | memoryview) -> None:
        """Write what `read` has returned."""
        self._replace(slot, np.frombuffer(state, np.uint32))

    def copy(self, source: int | None, target: int) -> None:
        """Copy the state of a slot to another one, or the initial state."""
        if source != target:
            rows = self._rows()
            self._replace(target, np.zeros_like(rows[0]) if source is None else rows[source])

    def _rows(self) -> NDArray[np.uint32]:
        """Return the bits of all states; those of a device that the host does not share memory with are a copy."""
        window = self._buffer.window
        whole: NDArray[np.uint32] = self._device.window(self.view) if window is None else window
        return whole.view(np.uint32)

    def _replace(self, slot: int, state: NDArray[np.uint32]) -> None:
        if self._buffer.window is not None:
            self._buffer.window[slot] = state
            return
        rows = np.array(self._rows())
        rows[slot] = state
        self._buffer.view = self._device.upload(rows, "float32")
