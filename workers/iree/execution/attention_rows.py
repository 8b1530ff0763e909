"""Queries and keys of the model, from which prompts are scored for sparse prefill."""

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import full_layers
from workers.engine.runner import LOOKED_ROWS, Chunk
from workers.iree.batch_inputs import runs_of
from workers.iree.build.graph_list import QUERIES
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.device import Device
from workers.iree.execution.prompt_inputs import PromptInputs
from workers.iree.execution.slot_buffers import SlotBuffers
from workers.iree.graph_registry import GraphRegistry


class AttentionRows:
    """Reads queries by a graph of their own, and keys of the cache in host memory."""

    def __init__(
        self, device: Device, plan: GraphPlan, graphs: GraphRegistry, buffers: SlotBuffers, inputs: PromptInputs
    ) -> None:
        self._device = device
        self._plan = plan
        self._graphs = graphs
        self._buffers = buffers
        self._inputs = inputs
        self.layers = full_layers(plan.config.plan)
        """The layers that attend to the whole prompt."""

    @property
    def readable(self) -> bool:
        """The runner was loaded with the graph, and the model has such layers."""
        return self._plan.queries and self._buffers.host_kv is not None and bool(self.layers)

    def queries(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        """See `AttentionReader.queries`, for a chunk that was checked."""
        (run,) = runs_of(chunk, -1, LOOKED_ROWS)
        result = self._graphs.call(f"{QUERIES}_{LOOKED_ROWS}", *self._inputs.of_runs([run], LOOKED_ROWS))
        return [self._device.download(result[number])[: len(run.tokens)] for number in range(len(self.layers))]

    def keys(self, slot: int, layer: int, end: int) -> NDArray[np.float32]:
        """See `AttentionReader.keys`."""
        config = self._plan.config
        assert self._buffers.host_kv is not None, "checked"
        group = self._buffers.host_kv.groups[config.kv_group(layer)]
        return group.keys(slot, config.kv_index(layer), end, self._plan.ops.dtype)
