"""Hidden states of all rows of prompts, after the last norm."""

from collections.abc import Sequence

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers.engine.embeddings.prompt_embeddings import has_rows
from workers.engine.runner import Chunk
from workers.iree.build.graph_list import HIDDEN
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.device import Device
from workers.iree.execution.prompt_inputs import PromptInputs
from workers.iree.execution.prompts import PromptGraphs
from workers.iree.graph_registry import GraphRegistry
from workers.iree.hidden_rows import float_rows
from workers.iree.model.tiled_ops import TiledOps


class PromptHiddenStates:
    """Computes chunks with the hidden states of all rows: at once where the graph for that is ready."""

    def __init__(
        self, device: Device, plan: GraphPlan, graphs: GraphRegistry, inputs: PromptInputs, prompts: PromptGraphs
    ) -> None:
        self._device = device
        self._plan = plan
        self._graphs = graphs
        self._inputs = inputs
        self._prompts = prompts
        kept = len(plan.cache.groups) + (plan.config.state_values > 0)
        self._scored_index = 2 + kept + bool(plan.config.mtp)
        """Index of the hidden states among the results of the scoring graph."""

    def prepare(self, chunks: Sequence[Chunk]) -> None:
        """Wait for a graph that leaves hidden states, which a new runner may not have yet. Raises `ValueError` for
        chunks with rows of embeddings."""
        if any(has_rows(chunk.tokens) for chunk in chunks):
            raise ValueError("chunks: hidden states are of tokens alone")
        sizes = self._plan.hidden_sizes
        if sizes and not self._graphs.covering(HIDDEN, sizes, sizes[0]):
            self._graphs.wait_for(f"prefill_{self._plan.prefill_sizes[-1]}")

    def of(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """See `Runner.hidden`, for chunks that were checked. Until the graph for all rows is there, one for prompts
        returns a few rows each time."""
        sizes = self._plan.hidden_sizes
        if sizes and self._graphs.covering(HIDDEN, sizes, sizes[0]):
            return self._at_once(chunks)
        most = self._prompts.few_rows if sizes else self._plan.score_chunk
        compute = self._few if sizes else self._scored
        starts = [range(0, len(chunk.tokens), most) for chunk in chunks]
        return [
            np.concatenate([compute(chunk.part(at, most)) for at in each])
            for chunk, each in zip(chunks, starts, strict=True)
        ]

    def _at_once(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        found: dict[int, list[NDArray[np.float32]]] = {chunk.slot: [] for chunk in chunks}
        block = self._plan.block
        for size, runs in self._prompts.calls(chunks, [-1] * len(chunks), HIDDEN):
            result = self._graphs.call(f"{HIDDEN}_{size}", *self._inputs.of_runs(runs, size))
            rows = self._float_rows(result[0])
            for at, run in enumerate(runs):
                found[run.slot].append(rows[at * block : at * block + len(run.tokens)])
            self._prompts.computed(runs, size, result, 2)
        return [np.concatenate(found[chunk.slot]) for chunk in chunks]

    def _few(self, chunk: Chunk) -> NDArray[np.float32]:
        return self._float_rows(self._prompts.few_prefilled(chunk)[0])[: len(chunk.tokens)]

    def _scored(self, chunk: Chunk) -> NDArray[np.float32]:
        result = self._prompts.scored(chunk, self._plan.score_chunk)
        return self._float_rows(result[self._scored_index])[: len(chunk.tokens)]

    def _float_rows(self, operand: rt.HalBufferView) -> NDArray[np.float32]:
        ops = self._plan.ops
        halves = isinstance(ops, TiledOps) and ops.arithmetic.per_word == 2
        return float_rows(self._device.window(operand), self._plan.hidden_width, halves=halves)
