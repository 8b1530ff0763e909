"""Prompts: the graphs that compute chunks, and the LM head for the last row of each."""

from collections.abc import Iterator, Sequence

import iree.runtime as rt
import numpy as np

from workers.engine.embeddings.prompt_embeddings import has_rows
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.batch_inputs import SlotRun, attended_ends, runs_of
from workers.iree.build.graph_list import EMBEDDED, HIDDEN
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.device import Device, Results
from workers.iree.execution.decode_steps import DecodeSteps, rows_of
from workers.iree.execution.prompt_inputs import PromptInputs
from workers.iree.graph_registry import GraphRegistry
from workers.iree.lora.lora_plan import ADAPTED
from workers.iree.lora.row_adapters import kind_for
from workers.iree.mtp import IreeMtpHead
from workers.iree.sampler import Sampler
from workers.sampling.sample_spec import SampleSpec, with_masks


class PromptGraphs:
    """Runs the graphs for chunks of prompts, which were checked."""

    def __init__(
        self,
        device: Device,
        plan: GraphPlan,
        graphs: GraphRegistry,
        inputs: PromptInputs,
        steps: DecodeSteps,
        sampler: Sampler,
        mtp: IreeMtpHead | None,
    ) -> None:
        self._device = device
        self._plan = plan
        self._graphs = graphs
        self._inputs = inputs
        self._steps = steps
        self._sampler = sampler
        self._mtp = mtp
        self._kept = len(plan.cache.groups) + (plan.config.state_values > 0)
        """Results of graphs that are buffers of slots."""
        self._no_rows = device.zeros(plan.last_rows.shape, str(plan.last_rows.dtype))

    @property
    def few_rows(self) -> int:
        """Rows of one prefill graph that `head` takes, if rows are exact."""
        return min(self._plan.head_sizes[-1], self._plan.chunks[0])

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        """See `Runner.prefill`."""
        wanted = [spec for spec in specs if spec is not None]
        embedded = self._plan.embedding_width > 0 and any(has_rows(chunk.tokens) for chunk in chunks)
        if not embedded and not self.ready(kind_for("prefill", chunks), head=bool(wanted)):
            return self._prefill_by_decoding(chunks, specs)
        lasts = iter(range(len(wanted)))
        output_indices = [-1 if spec is None else next(lasts) for spec in specs]
        last_rows = self._no_rows.view
        kind = kind_for(EMBEDDED if embedded else "prefill", chunks)
        for size, runs in self.calls(chunks, output_indices, kind):
            ends = np.full(self._plan.last_rows.shape[0], -1, np.int32)
            for row, run in enumerate(runs):
                if run.output_index >= 0:
                    ends[run.output_index] = row * (self._plan.block or size) + len(run.tokens) - 1
            arguments = [*self._inputs.of_runs(runs, size), self._device.upload(ends), last_rows]
            if embedded:
                arguments.append(self._device.upload(self._inputs.given_rows(runs, size)))
                if self._plan.has_ends:
                    shape = (size // (self._plan.block or size), self._plan.block or size)
                    arguments.append(self._device.upload(attended_ends(runs, shape)))
            result = self._graphs.call(f"{kind}_{size}", *arguments, *self._inputs.adapters(kind, runs, size))
            last_rows = result[0]
            self.computed(runs, size, result, 2)
        if not wanted:
            return [None] * len(chunks)
        tokens = self._sample_last(last_rows, with_masks(wanted))
        return [None if index < 0 else tokens[index] for index in output_indices]

    def ready(self, kind: str, *, head: bool) -> bool:
        """Return whether a prefill graph of a kind is ready, and with `head` an LM head for all rows that it leaves."""
        sizes = self._plan.prefill_sizes
        if self._graphs.covering(kind, sizes, sizes[0]) is None:
            return False
        return not head or f"head_{self._plan.head_sizes[-1]}" in self._graphs

    def calls(
        self, chunks: Sequence[Chunk], output_indices: Sequence[int], kind: str = "prefill"
    ) -> Iterator[tuple[int, list[SlotRun]]]:
        """Divide the rows of chunks, a block of one slot after the other, among the cheapest graphs that are ready."""
        of_kind = {EMBEDDED: self._plan.embedded_sizes, HIDDEN: self._plan.hidden_sizes}
        sizes, block = of_kind.get(kind.removeprefix(ADAPTED), self._plan.prefill_sizes), self._plan.block
        runs = [
            run
            for chunk, index in zip(chunks, output_indices, strict=True)
            for run in runs_of(chunk, index, block or sizes[-1])
        ]
        while runs:
            rows = len(runs) * block if block else len(runs[0].tokens)
            size = self._graphs.covering(kind, sizes, min(rows, sizes[-1])) or self._graphs.largest(kind, sizes)
            count = size // block if block else 1
            yield size, runs[:count]
            runs = runs[count:]

    def head_logits(self, rows: rt.HalBufferView, count: int) -> Results:
        """Return greedy tokens and logits of at least the first `count` hidden rows."""
        size = self._graphs.covering("head", self._plan.head_sizes, count) or self._plan.head_sizes[-1]
        return self._graphs.call(f"head_{size}", rows, count)

    def few_prefilled(self, chunk: Chunk) -> Results:
        """Compute a chunk of few rows by a prefill graph: the hidden rows of all of them, and the cache."""
        kind = kind_for("prefill", [chunk])
        ((size, runs),) = self.calls([chunk], [-1], kind)
        ends = np.full(self._plan.last_rows.shape[0], -1, np.int32)
        ends[: len(chunk.tokens)] = np.arange(len(chunk.tokens))
        arguments = self._inputs.of_runs(runs, size)
        arguments += [self._device.upload(ends), self._no_rows.view, *self._inputs.adapters(kind, runs, size)]
        result = self._graphs.call(f"{kind}_{size}", *arguments)
        self.computed(runs, size, result, 2)
        return result

    def scored(self, chunk: Chunk, size: int) -> Results:
        """Run the scoring graph on a chunk of up to `size` rows: greedy tokens and logits of all rows."""
        runs, kind = runs_of(chunk, -1, self._plan.block or size), kind_for("score", [chunk])
        inputs = [*self._inputs.of_runs(runs, size), *self._inputs.adapters(kind, runs, size)]
        result = self._graphs.call(f"{kind}_{size}", *inputs)
        self.computed(runs, size, result, 3)
        return result

    def computed(self, runs: Sequence[SlotRun], size: int, result: Results, index: int) -> None:
        """Give the hidden rows of a graph of `size` rows to the head that drafts: the result at `index`, behind the
        recurrent states if there are any."""
        if self._mtp is None or self._mtp.rows.idle:
            return
        view = result[index + self._kept - 1]
        hidden = self._device.window(view)
        block = self._plan.block or size
        for at, run in enumerate(runs):
            rows = hidden[at * block : at * block + len(run.tokens)]
            if (position := run.first_position) is not None and not has_rows(run.tokens):
                self._mtp.computed(run.slot, run.start, position, run.tokens, rows, prompt=True)
            else:  # the head has rows of tokens at consecutive positions only
                self._mtp.rows.forget(run.slot)

    def close(self) -> None:
        """Release the buffer of hidden rows. Nothing may be called afterwards."""
        del self._no_rows

    def _prefill_by_decoding(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        """Compute prompts by a decode graph, whose rows may be of one slot: all of them are in the cache before one
        attends to it. The last row of each chunk is in the last call, from which tokens are sampled."""
        before: list[DecodeRow] = []
        lasts: list[DecodeRow] = []
        for chunk, spec in zip(chunks, specs, strict=True):
            *others, last = rows_of(chunk, spec)
            before += others
            (before if spec is None else lasts).append(last)
        most = self._plan.buckets[-1]
        for at in range(0, len(before), most):
            self._steps.run(before[at : at + most])
        tokens = iter(self._steps.sample(lasts, prompt=True))
        return [None if spec is None else next(tokens) for spec in specs]

    def _sample_last(self, rows: rt.HalBufferView, specs: list[SampleSpec]) -> list[int | None]:
        """Tokens from the first hidden rows."""
        result = self.head_logits(rows, len(specs))
        padded: list[SampleSpec | None] = [*specs, *[None] * (result[1].shape[0] - len(specs))]
        return self._sampler.sample(result, padded, range(len(specs)))
