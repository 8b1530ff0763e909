"""The inputs of the graphs for prompts."""

from collections.abc import Sequence
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers.iree.batch_inputs import RopeTable, SlotRun
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.buffers import Input
from workers.iree.device.device import Device
from workers.iree.execution.slot_buffers import SlotBuffers
from workers.iree.lora.lora_plan import ADAPTED
from workers.iree.lora.row_adapters import RowAdapters


class PromptInputs:
    """Writes the rows of runs for a graph. Owns the inputs of the graphs for prompts."""

    def __init__(
        self,
        device: Device,
        plan: GraphPlan,
        angles: RopeTable,
        buffers: SlotBuffers,
        written: list[int],
        adapters: RowAdapters,
    ) -> None:
        """`written` is `SlotRows.written`, which grows by the rows of runs."""
        self._device = device
        self._plan = plan
        self._angles = angles
        self._buffers = buffers
        self._written = written
        self._adapters = adapters
        self._inputs_of: dict[tuple[int, ...], list[Input]] = {}
        """By the blocks of the graph and the rows of each; without the cache."""

    def of_runs(self, runs: Sequence[SlotRun], size: int) -> list[rt.HalBufferView | int]:
        """Return the inputs of a graph of `size` rows, for one run or for the blocks of several."""
        block = self._plan.block or size
        shape = (size // block, block)
        tokens = np.zeros(shape, np.int32)
        kv_rows = np.full(shape, self._plan.cache.spare_row, np.int32)
        positions = np.zeros((3, *shape) if any(run.axes is not None for run in runs) else shape, np.int64)
        slots = np.full(shape[0], runs[0].slot, np.int32)
        for row, run in enumerate(runs):
            count = len(run.tokens)
            tokens[row, :count] = run.tokens if run.embeddings is None else [max(token, -1) for token in run.tokens]
            kv_rows[row, :count] = np.arange(run.start, run.start + count)
            given = run.positions
            if run.axes is None:
                positions[..., row, :count] = np.arange(run.position, run.position + count) if given is None else given
            else:
                positions[:, row, :count] = run.axes
            slots[row] = run.slot
            self._written[run.slot] = max(self._written[run.slot], run.start + count)
        return self._inputs(tokens, positions, kv_rows, slots)

    def adapters(self, kind: str, runs: Sequence[SlotRun], size: int) -> list[rt.HalBufferView]:
        """Return the last input of a graph of `size` rows whose rows may have adapters; none of others."""
        if not kind.startswith(ADAPTED):
            return []
        return [self._adapters.input(size // (self._plan.block or size), range(len(runs)), runs)]

    def given_rows(self, runs: Sequence[SlotRun], size: int) -> NDArray[np.float32]:
        """Return the embeddings of the rows without a token, and zeros for the others: float32 [sequences, rows,
        values], each of their parts padded."""
        block, parts, width = self._plan.block or size, self._plan.embedded_parts, self._plan.embedding_width
        rows = np.zeros((size // block, block, parts, self._plan.config.hidden_size), np.float32)
        ids, given = np.zeros(block, np.int32), np.zeros((block, width), np.float32)
        for row, run in enumerate(runs):
            if run.embeddings is not None:
                count = len(run.tokens)
                given[:count] = 0
                run.embeddings.put(run.tokens, ids[:count], given[:count])
                rows[row, :count, :, : width // parts] = given[:count].reshape(count, parts, -1)
        return rows.reshape(size // block, block, -1)

    def close(self) -> None:
        """Release the inputs."""
        self._inputs_of.clear()

    def _inputs(
        self, tokens: NDArray[Any], positions: NDArray[Any], kv_rows: NDArray[Any], slots: NDArray[Any]
    ) -> list[rt.HalBufferView | int]:
        angles = self._angles.at(positions) if positions.ndim == tokens.ndim else self._angles.at_axes(positions)
        values = (tokens, *angles, kv_rows, slots)
        if tokens.shape not in self._inputs_of:
            self._inputs_of[tokens.shape] = [self._device.input(each.shape, each.dtype.name) for each in values]
        given = zip(self._inputs_of[tokens.shape], values, strict=True)
        arguments = [*(each.put(value) for each, value in given), *self._buffers.kept]
        if self._buffers.states is not None:
            arguments += self._buffers.states.prompt_places(slots, kv_rows < self._plan.cache.attended)
        return arguments
