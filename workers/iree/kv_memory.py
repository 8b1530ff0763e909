"""Memory of the KV cache: its bytes, and the cache as the host sees it."""

import math

from workers.host.memory import Needed
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.buffers import DeviceBuffer
from workers.iree.kernels.attention.kv_elements import kv_elements
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kv import HostKv
from workers.iree.model.tiled_ops import TiledOps
from workers.precision import head_row_bytes


def row_bytes(plan: GraphPlan) -> int:
    """Return the bytes of one cache row of one slot, all layers together."""
    cache = plan.cache
    head = head_row_bytes(cache.head_dim, 4 if plan.ops.dtype == "float32" else 2, cache.kv_dtype)
    return cache.layers * 2 * cache.heads * head


def needed(plan: GraphPlan, context: int, kv_bytes: int, free: int | None, workers: int) -> Needed:
    """Return the memory of a plan's weights, of its KV cache when it is as full as it may get, and of its recurrent
    states."""
    weights = sum(stored.nbytes for stored in plan.weights)
    slots, states = plan.cache.slots, 4 * math.prod(plan.state_shape)
    return Needed.of(weights, row_bytes(plan), slots, context, kv_bytes, free, workers, states)


def host_kv(plan: GraphPlan, kv: DeviceBuffer) -> HostKv | None:
    """Return the KV cache as the host sees it; None where it is in memory of the device."""
    if kv.window is None or kv.memory is None or not isinstance(plan.ops, TiledOps):
        return None
    elements = kv_elements(plan.ops.arithmetic, plan.cache.bits)
    return HostKv(kv.window, kv.memory, plan.cache, (LANES, elements.k))
