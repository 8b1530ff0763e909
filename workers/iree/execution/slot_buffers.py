"""Buffers that stay on the device for all slots: the KV cache, and recurrent states or rings of windows."""

import iree.runtime as rt

from workers.engine.states.window_states import WindowStates
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.device import Device
from workers.iree.kv_memory import host_kv
from workers.iree.model.window_ring import TILE_ROWS
from workers.iree.slot_state_buffer import SlotStateBuffer


class SlotBuffers:
    """Owns the buffers. Graphs update them in place."""

    def __init__(self, device: Device, plan: GraphPlan) -> None:
        """Allocate zeros. Raises `DeviceError` when there is no room."""
        self.kv = [device.zeros(group.shape, group.dtype(plan.ops.dtype)) for group in plan.cache.groups]
        """The arrays of the KV cache."""
        self.host_kv = host_kv(plan, self.kv)
        """The KV cache as the host sees it; None where it is in memory of the device."""
        self.states = SlotStateBuffer(device, plan) if plan.config.state_values else None
        """The recurrent states; None if the model has none."""
        self.windows: WindowStates | None = None
        """The rows that the rings of each slot have; None without rings."""
        if ring := plan.cache.ring:
            assert self.host_kv is not None, "rings are for a cache in host memory"
            kept, reach = ring - TILE_ROWS, plan.config.widest_window - 1
            self.windows = WindowStates(self.host_kv, plan.cache.slots, kept, reach)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of one slot, see `RunnerCapabilities.state_bytes`."""
        of_states = self.states or self.windows
        return 0 if of_states is None else of_states.state_bytes

    @property
    def kv_views(self) -> list[rt.HalBufferView]:
        """The arrays of the KV cache, as graphs take them."""
        return [each.view for each in self.kv]

    @property
    def kept(self) -> list[rt.HalBufferView]:
        """All buffers, as graphs take them."""
        return self.kv_views if self.states is None else [*self.kv_views, self.states.view]

    def memory(self) -> dict[str, int]:
        """Return the bytes of the KV cache, and of recurrent states if there are any."""
        states = {} if self.states is None else {"states": self.states.nbytes}
        return {"kv": sum(each.nbytes for each in self.kv)} | states

    def close(self) -> None:
        """Release the buffers. Nothing may be called afterwards."""
        del self.windows, self.host_kv, self.kv, self.states
