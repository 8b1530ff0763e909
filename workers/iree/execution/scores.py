"""Logits of all rows of a prompt, and the log-probabilities of its tokens."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.engine.runner import Chunk, NotFiniteError
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.device import Device, Results
from workers.iree.execution.decode_steps import DecodeSteps, rows_of
from workers.iree.execution.prompts import PromptGraphs
from workers.iree.execution.slot_buffers import SlotBuffers
from workers.iree.graph_registry import GraphRegistry
from workers.iree.lora.row_adapters import kind_for
from workers.iree.sampler import Sampler
from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import SampleSpec

UNREADY_ROWS = 4
"""Rows of a chunk with log-probabilities while the host computes these, which takes it some 6 ms for a row of a
vocabulary of 150,000."""


class PromptScores:
    """Computes chunks, which were checked, with the logits of all rows: by the scoring graph where that is ready."""

    def __init__(
        self,
        device: Device,
        plan: GraphPlan,
        graphs: GraphRegistry,
        buffers: SlotBuffers,
        written: list[int],
        prompts: PromptGraphs,
        steps: DecodeSteps,
        sampler: Sampler,
        *,
        exact: bool,
    ) -> None:
        """`written` is `SlotRows.written`. Rows are `exact` if they have the same bits however they are computed."""
        self._device = device
        self._plan = plan
        self._graphs = graphs
        self._buffers = buffers
        self._written = written
        self._prompts = prompts
        self._steps = steps
        self._sampler = sampler
        self._exact = exact

    @property
    def reported_rows(self) -> tuple[int, ...]:
        """A few rows, which a prefill graph and its head take, and those of the scoring graph once it is ready."""
        few, size = self._prompts.few_rows, self._plan.score_chunk
        if not self._sampler.reports(few):
            return (min(few, UNREADY_ROWS),)
        return (few, size) if self._graphs.covering("score", (size,), size) else (few,)

    def report(
        self, chunk: Chunk, spec: SampleSpec | None, targets: Sequence[int]
    ) -> tuple[list[RowLogprobs], Chunk | None]:
        """Compute a chunk with the log-probabilities of `targets`. Returns these, and what of the chunk is then to be
        prefilled for its token; None for nothing."""
        exact, length = self._exact, len(chunk.tokens)
        size, kind, few = self._plan.score_chunk, kind_for("score", [chunk]), self._prompts.few_rows
        if (exact and length <= few) or not self._graphs.covering(kind, (size,), size):
            size = few
        reports: list[RowLogprobs] = []
        # Another graph may have rounded otherwise: unless rows are exact, all are computed again as without a report.
        again = 0 if not exact else length - 1
        starts = list(range(0, length, size))
        before, states = None, self._buffers.states
        if states is not None and spec is not None:
            starts = sorted({*starts, again})
        for at, end in zip(starts, [*starts[1:], length], strict=True):
            if states is not None and at == again:
                before = states.read(chunk.slot)
            part = chunk.part(at, end - at)
            result = self._few_logits(part) if size == few else self._prompts.scored(part, size)
            reports += self._sampler.reports_of(result, len(part.tokens), targets[at:end])
        if exact and spec is None:
            return reports, None
        if states is not None and before is not None:
            states.write(chunk.slot, before)
            self._written[chunk.slot] = chunk.start + again
        return reports, chunk.part(again, length - again)

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        """See `Runner.logits`."""
        size = self._plan.score_chunk
        if self._graphs.covering(kind_for("score", [chunk]), (size,), size):
            parts = [self._score(chunk, at, size) for at in range(0, len(chunk.tokens), size)]
        else:  # by single steps, which are slower than the graph and faster than its compiler
            parts = [self.score_row(chunk, at) for at in range(len(chunk.tokens))]
        whole = np.concatenate(parts)
        if not np.isfinite(whole.max(axis=-1)).all():
            raise NotFiniteError
        return whole

    def score_row(self, chunk: Chunk, at: int) -> NDArray[np.float32]:
        """Return the logits of one row of a chunk by a decode step: float32 [1, vocab_size]."""
        result, (index,), _, _ = self._steps.run(rows_of(chunk.part(at, 1)))
        logits: NDArray[np.float32] = self._device.download(result[1])
        return logits[index : index + 1]

    def _score(self, chunk: Chunk, at: int, size: int) -> NDArray[np.float32]:
        part = chunk.part(at, size)
        logits: NDArray[np.float32] = self._device.download(self._prompts.scored(part, size)[1])
        return logits[: len(part.tokens)]

    def _few_logits(self, chunk: Chunk) -> Results:
        """Compute a chunk of few rows: greedy tokens and logits of all of them."""
        kind = kind_for("prefill", [chunk])
        if not self._prompts.ready(kind, head=True):
            return self._steps.run(rows_of(chunk))[0]
        return self._prompts.head_logits(self._prompts.few_prefilled(chunk)[0], len(chunk.tokens))
