"""Decode steps: the graphs that compute a row of each slot, or several."""

from collections.abc import Sequence

from protocol.request import Sampling
from workers.engine.runner import Chunk, DecodeRow, chunks_of
from workers.iree.batch_inputs import DecodeInputs, RopeTable
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.device import Device, Results
from workers.iree.execution.slot_buffers import SlotBuffers
from workers.iree.graph_registry import GraphRegistry
from workers.iree.lora.row_adapters import RowAdapters, kind_for
from workers.iree.mtp import IreeMtpHead
from workers.iree.sampler import Sampler
from workers.sampling.sample_spec import SampleSpec, with_masks


class DecodeSteps:
    """Runs the decode graphs, and owns their inputs."""

    def __init__(
        self,
        device: Device,
        plan: GraphPlan,
        graphs: GraphRegistry,
        angles: RopeTable,
        buffers: SlotBuffers,
        written: list[int],
        adapters: RowAdapters,
        sampler: Sampler,
        mtp: IreeMtpHead | None,
    ) -> None:
        """`written` is `SlotRows.written`, which grows by the rows of a step."""
        self._device = device
        self._plan = plan
        self._graphs = graphs
        self._angles = angles
        self._buffers = buffers
        self._written = written
        self._adapters = adapters
        self._sampler = sampler
        self._mtp = mtp
        self._inputs: dict[int, DecodeInputs] = {}
        """By the rows of the graph."""

    def sample(self, rows: Sequence[DecodeRow], *, prompt: bool) -> list[int | None]:
        """Compute rows that were checked, or those of prompts, and sample a token from each."""
        if not rows:
            return []
        result, output_indices, batch, greedy = self.run(rows, prompt=prompt)
        specs: list[SampleSpec | None] = [None] * batch
        for index, spec in zip(output_indices, with_masks(row.sample for row in rows), strict=True):
            specs[index] = spec
        return self._sampler.sample(result, specs, output_indices, greedy)

    def run(
        self, rows: Sequence[DecodeRow], *, prompt: bool = True
    ) -> tuple[Results, Sequence[int], int, list[int] | None]:
        """Run the cheapest decode graph that is ready and holds the rows, which were checked. Several may be of one
        slot where rows are exact: the KV of all of them is written in each layer before any of them attends, and a
        recurrent state takes them in order; those of prompts change it in place.

        Returns its results, the index of each row among its outputs, how many rows it has, and `DecodeInputs.greedy`.
        """
        most = self._plan.buckets[-1]
        sizes = self._plan.buckets if len(rows) <= most else (self._plan.draft_rows,)
        kind = kind_for("decode", rows)
        batch = self._graphs.covering(kind, sizes, len(rows)) or sizes[-1]
        # Rows lie side by side whatever their slots are. Plain graphs have a row for each slot, in order.
        output_indices = range(len(rows)) if self._plan.block else [row.slot for row in rows]
        for row in rows:
            self._written[row.slot] = max(self._written[row.slot], row.start + 1)
        inputs = self._inputs_of(batch)
        buffers = self._buffers
        arguments = [*inputs.write(output_indices, rows), *buffers.kept]
        if buffers.states is not None:
            arguments += buffers.states.decode_places([row.slot for row in rows], inputs.places, in_place=prompt)
        arguments += inputs.results
        if kind != "decode":
            arguments.append(self._adapters.input(batch, output_indices, rows))
        result = self._graphs.call(f"{kind}_{batch}", *arguments)
        greedy = inputs.greedy
        if self._mtp is not None and not self._mtp.rows.idle:
            self._computed(self._mtp, rows, result, prompt=prompt)
        return result, output_indices, batch, greedy

    def close(self) -> None:
        """Release the inputs."""
        self._inputs.clear()

    def _inputs_of(self, batch: int) -> DecodeInputs:
        inputs = self._inputs.get(batch)
        if inputs is None:
            cache, places = self._plan.cache, self._plan.has_places
            inputs = DecodeInputs(self._device, batch, self._angles, cache.spare_row, cache.slots, has_places=places)
            self._inputs[batch] = inputs
        return inputs

    def _computed(self, mtp: IreeMtpHead, rows: Sequence[DecodeRow], result: Results, *, prompt: bool) -> None:
        """Give the hidden rows of a step to the head that drafts."""
        view, first = result[2 + len(self._buffers.kept)], 0
        hidden = self._device.window(view)
        for chunk in chunks_of(rows):
            mine = hidden[first : first + len(chunk.tokens)]
            mtp.computed(chunk.slot, chunk.start, chunk.position, chunk.tokens, mine, prompt=prompt)
            first += len(chunk.tokens)


def rows_of(chunk: Chunk, last: SampleSpec | None = None) -> list[DecodeRow]:
    """Return the rows of a chunk as those of a decode step; the last one is sampled by `last`."""
    none = SampleSpec(Sampling(), 0)
    # Those of a token are the same on all axes.
    positions = [
        chunk.position_at(at) if chunk.axes is None else int(chunk.axes[0, at]) for at in range(len(chunk.tokens))
    ]
    rows = [
        DecodeRow(chunk.slot, token, chunk.start + at, positions[at], none, chunk.adapter)
        for at, token in enumerate(chunk.tokens[:-1])
    ]
    end = len(rows)
    final = DecodeRow(chunk.slot, chunk.tokens[-1], chunk.start + end, positions[end], last or none, chunk.adapter)
    return [*rows, final]
