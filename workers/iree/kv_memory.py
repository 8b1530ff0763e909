"""Memory of the KV cache: its bytes, and the cache as the host sees it."""

import math
from collections.abc import Sequence

from workers.host.memory import Needed
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.buffers import DeviceBuffer
from workers.iree.kernels.attention.kv_elements import kv_elements
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kv import HostKv
from workers.iree.kv_groups import HostKvGroups
from workers.iree.model.tiled_ops import TiledOps


def row_bytes(plan: GraphPlan) -> int:
    """Return the bytes of one cache row of one slot, all layers together."""
    return plan.cache.row_bytes(4 if plan.ops.dtype == "float32" else 2)


def ring_bytes(plan: GraphPlan) -> int:
    """Return the bytes of the rings of one slot."""
    return plan.cache.ring_bytes(4 if plan.ops.dtype == "float32" else 2)


def needed(plan: GraphPlan, context: int, kv_bytes: int, free: int | None, workers: int) -> Needed:
    """Return the memory of a plan's weights, those of a vision tower and of adapters included, of its KV cache when it
    is as full as it may get, and of its recurrent states and rings."""
    weights = sum(stored.nbytes for stored in plan.weights)
    weights += 0 if plan.tower is None else plan.tower.nbytes
    weights += 0 if plan.lora is None else plan.lora.nbytes(plan.ops.dtype)
    slots, states = plan.cache.slots, 4 * math.prod(plan.state_shape)
    states += slots * ring_bytes(plan)
    return Needed.of(weights, row_bytes(plan), slots, context, kv_bytes, free, workers, states)


def host_kv(plan: GraphPlan, kv: Sequence[DeviceBuffer]) -> HostKvGroups | None:
    """Return the KV cache as the host sees it; None where it is in memory of the device."""
    made = []
    for array, group in zip(kv, plan.cache.groups, strict=True):
        if array.window is None or array.memory is None or not isinstance(plan.ops, TiledOps):
            return None
        elements = kv_elements(plan.ops.arithmetic, group.bits)
        made.append(HostKv(array.window, array.memory, group, (LANES, elements.k)))
    return HostKvGroups(made, [group.ring for group in plan.cache.groups])
