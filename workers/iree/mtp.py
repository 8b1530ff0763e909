"""The head for multi-token prediction on IREE: it fills its layer of the cache, and drafts tokens."""

import time
from collections.abc import Callable, Iterable, Sequence

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from protocol.request import Sampling
from workers.engine.runner import DecodeRow
from workers.engine.speculation.mtp.head_rows import HeadRows, HeadRun
from workers.iree.batch_inputs import DecodeInputs, RopeTable
from workers.iree.build.graph_list import MTP_ROWS
from workers.iree.build.graph_plan import GraphPlan
from workers.iree.device.buffers import Input
from workers.iree.device.device import Device, Results
from workers.iree.graph_registry import GraphRegistry
from workers.iree.sampler import Sampler
from workers.sampling.sample_spec import SampleSpec, with_masks

Hidden = NDArray[np.float32]
_UNSAMPLED = SampleSpec(Sampling(), 0)


class IreeMtpHead:
    """Implements `DraftHead`. The rows of the head are computed a few at a time: those that wait with a draft, or by a
    graph that writes to the cache alone."""

    def __init__(
        self,
        device: Device,
        graphs: GraphRegistry,
        plan: GraphPlan,
        angles: RopeTable,
        sampler: Sampler,
        call: Callable[..., Results],
        kv: Callable[[], Sequence[rt.HalBufferView]],
        ahead: list[int],
    ) -> None:
        """`call` runs a graph that is ready on the arrays of the cache `kv`; `ahead` are the rows of each slot that the
        head has filled in its layer, which may be more than the model's."""
        self._device = device
        self._graphs = graphs
        self._plan = plan
        self._angles = angles
        self._sampler = sampler
        self._call = call
        self._kv = kv
        self._ahead = ahead
        self._inputs: dict[int, tuple[DecodeInputs, Input]] = {}
        """By the rows of the graph."""
        self.rows: HeadRows[Hidden] = HeadRows(plan.cache.slots)
        self.followed_s = self.prompts_s = 0.0

    def follow(self, slots: int | None) -> None:
        """See `DraftHead.follow`."""
        self.rows.follow(slots)

    def computed(
        self, slot: int, start: int, position: int, tokens: Sequence[int], hidden: Hidden, *, prompt: bool
    ) -> None:
        """Note rows that the model has computed, those of a prompt or not (see `HeadRows.computed`)."""
        if not self.rows.follows(slot, prompt=prompt):
            return
        began = time.perf_counter()
        self.rows.computed(slot, start, position, tokens, np.array(hidden))
        if self.rows.waiting >= MTP_ROWS:
            self.fill()
        if self._drafts and prompt:
            self.prompts_s += time.perf_counter() - began
        elif self._drafts:
            self.followed_s += time.perf_counter() - began

    @property
    def _drafts(self) -> bool:
        """The graph that drafts is ready."""
        return f"mtp_{self._plan.mtp_sizes[-1]}" in self._graphs

    def fill(self) -> None:
        """Compute the rows that wait. Until the graph is ready, they are left out, and drafts are less often right."""
        self._fill(_rows(self.rows.take()))

    def ready(self, slot: int, row: int) -> bool:
        """See `DraftHead.ready`."""
        return self._drafts and self.rows.next(slot, row, 0) is not None

    def draft(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        """See `DraftHead.draft`."""
        runs = [self.rows.next(row.slot, row.start, row.token) for row in rows]
        found = [run for run in runs if run is not None]
        if len(found) < len(rows):
            raise ValueError("rows: the hidden state before a row is unknown")
        waiting, sizes = _rows(self.rows.take()), self._plan.mtp_sizes
        if len(waiting) + len(rows) > sizes[-1]:
            self._fill(waiting)
            waiting = []
        computed = [*waiting, *_rows(found)]
        size = self._graphs.covering("mtp", sizes, len(computed)) or sizes[-1]
        result = self._compute(f"mtp_{size}", size, computed)
        indices = range(len(waiting), len(computed))
        specs: list[SampleSpec | None] = [None] * size
        specs[indices.start : indices.stop] = with_masks(row.sample for row in rows)
        tokens = self._sampler.sample(result, specs, indices)
        view = result[2 + len(self._plan.cache.groups)]
        hidden = self._device.window(view)
        for run, index in zip(found, indices, strict=True):
            self.rows.drafted(run, np.array(hidden[index : index + 1]))
            self._ahead[run.slot] = max(self._ahead[run.slot], run.start + 1)
        return tokens

    def close(self) -> None:
        """Release the inputs of the graphs."""
        self._inputs.clear()

    def _fill(self, rows: "list[tuple[DecodeRow, Hidden]]") -> None:
        name = f"rows_{MTP_ROWS}"
        if name in self._graphs:
            for at in range(0, len(rows), MTP_ROWS):
                self._compute(name, MTP_ROWS, rows[at : at + MTP_ROWS])

    def _compute(self, name: str, size: int, rows: "list[tuple[DecodeRow, Hidden]]") -> Results:
        if size not in self._inputs:
            hidden = self._device.input((size, self._plan.config.hidden_size), "float32")
            cache = self._plan.cache
            self._inputs[size] = DecodeInputs(self._device, size, self._angles, cache.spare_row, cache.slots), hidden
        inputs, hidden = self._inputs[size]
        for index, (_, values) in enumerate(rows):
            hidden.array[index] = values
        arguments = inputs.write(range(len(rows)), [row for row, _ in rows])
        return self._call(name, *arguments, *self._kv(), hidden.ready())


def _rows(runs: Iterable[HeadRun[Hidden]]) -> "list[tuple[DecodeRow, Hidden]]":
    """Return the rows of runs, as the inputs of a step, each with its hidden state."""
    return [
        (DecodeRow(run.slot, token, run.start + at, run.position + at, _UNSAMPLED), run.hidden[at])
        for run in runs
        for at, token in enumerate(run.tokens)
    ]
