"""Wraps a runner with planned faults of its calls, for tests and soaks. Without such faults there is no wrapper."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from workers.engine.runner import (
    AttentionReader,
    Chunk,
    DecodeRow,
    DraftHead,
    NotFiniteError,
    Runner,
    RunnerCapabilities,
)
from workers.faults.plan import Act, Fault, FaultPlan, PlannedFault, of_calls
from workers.sampling.logprobs import RowLogprobs
from workers.sampling.sample_spec import LogitEdits, SampleSpec
from workers.vision.encoder import VisionEncoder

_NAN_BYTE = b"\xff"
"""Fills numbers that are NaN in any format."""


def with_faults(runner: Runner, faults: Sequence[Fault]) -> Runner:
    """Return the runner, wrapped if the plan has faults of calls."""
    planned = of_calls(faults)
    return FaultyRunner(runner, planned) if planned else runner


class FaultyRunner:
    """Implements `workers.engine.runner.Runner` around another runner, which computes normally. Calls to the device, or
    their results, fail.

    A call that raises has written its rows before, which must not be read again: all later logits of the slot are NaN
    until it is reset or truncated by a copy. These NaN are made on the device, where the model's own would be: the
    edits of a sample add NaN to one logit, and the device must detect it. Prefill, decode and logits calls are counted.
    """

    def __init__(self, runner: Runner, faults: Sequence[Fault], acts: Mapping[str, Act] | None = None) -> None:
        """`acts` as in `FaultPlan`."""
        self._runner = runner
        self._plan = FaultPlan(faults, acts)
        self._calls = 0
        self._corrupted: dict[int, int] = {}
        """The first corrupted cache row of each slot: all logits after it are NaN."""

    @property
    def capabilities(self) -> RunnerCapabilities:
        """The capabilities of the wrapped runner."""
        return self._runner.capabilities

    @property
    def draft_head(self) -> DraftHead | None:
        """That of the wrapped runner, without faults: its failures end no request."""
        return self._runner.draft_head

    @property
    def vision(self) -> VisionEncoder | None:
        """See `Runner.vision`."""
        return self._runner.vision

    @property
    def attention(self) -> AttentionReader | None:
        """That of the wrapped runner, without faults, as the head."""
        return self._runner.attention

    @property
    def graphs_failed(self) -> int:
        """The count of the wrapped runner."""
        return self._runner.graphs_failed

    def fits(self, rows: int) -> bool:
        """See the wrapped runner."""
        return self._runner.fits(rows)

    def prefill(self, chunks: Sequence[Chunk], specs: Sequence[SampleSpec | None]) -> list[int | None]:
        """Carry out the planned faults, then prefill."""
        given = [token for chunk in chunks for token in chunk.tokens]
        self._enter(given)
        for chunk in chunks:
            self._look(chunk.slot, chunk.start, chunk.tokens)
        pairs = zip(chunks, specs, strict=False)  # the runner refuses unpaired arguments
        seen = [None if spec is None else self._seen(chunk.slot, spec) for chunk, spec in pairs]
        tokens = self._runner.prefill(chunks, [*seen, *specs[len(seen) :]])
        self._leave({chunk.slot: chunk.start for chunk in chunks}, given)
        return tokens

    def decode(self, rows: Sequence[DecodeRow]) -> list[int | None]:
        """Carry out the planned faults, then decode."""
        given = [row.token for row in rows]
        self._enter(given)
        for row in rows:
            self._look(row.slot, row.start, (row.token,))
        tokens = self._runner.decode([replace(row, sample=self._seen(row.slot, row.sample)) for row in rows])
        self._leave({row.slot: row.start for row in reversed(rows)}, given)  # the first row of each slot
        return tokens

    def logprobs(self, rows: Sequence[int]) -> list[RowLogprobs]:
        """Pass through to the wrapped runner."""
        return self._runner.logprobs(rows)

    @property
    def reported_rows(self) -> tuple[int, ...]:
        """Those of the wrapped runner."""
        return self._runner.reported_rows

    def prefill_reported(
        self, chunk: Chunk, spec: SampleSpec | None, targets: Sequence[int]
    ) -> tuple[int | None, list[RowLogprobs]]:
        """Carry out the planned faults, then prefill. Raises `NotFiniteError` for a corrupted slot."""
        self._enter(chunk.tokens)
        self._look(chunk.slot, chunk.start, chunk.tokens)
        values = self._runner.prefill_reported(chunk, spec, targets)
        self._leave({chunk.slot: chunk.start}, chunk.tokens)
        if chunk.slot in self._corrupted:
            raise NotFiniteError
        return values

    def logits(self, chunk: Chunk) -> NDArray[np.float32]:
        """Carry out the planned faults, then compute the logits. Raises `NotFiniteError` for a corrupted slot."""
        self._enter(chunk.tokens)
        self._look(chunk.slot, chunk.start, chunk.tokens)
        values = self._runner.logits(chunk)
        self._leave({chunk.slot: chunk.start}, chunk.tokens)
        if chunk.slot in self._corrupted:
            raise NotFiniteError
        return values

    def hidden(self, chunks: Sequence[Chunk]) -> list[NDArray[np.float32]]:
        """Carry out the planned faults, then compute the hidden states: NaN for a corrupted slot."""
        given = [token for chunk in chunks for token in chunk.tokens]
        self._enter(given)
        for chunk in chunks:
            self._look(chunk.slot, chunk.start, chunk.tokens)
        states = self._runner.hidden(chunks)
        self._leave({chunk.slot: chunk.start for chunk in chunks}, given)
        pairs = zip(chunks, states, strict=True)
        return [rows * np.float32(np.nan) if chunk.slot in self._corrupted else rows for chunk, rows in pairs]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy rows, corrupted ones included."""
        self._runner.copy_prefix(source, target, length)
        row = self._corrupted.get(source)
        self._corrupted.pop(target, None)
        if row is not None and row < length:
            self._corrupted[target] = row

    def read_rows(self, slot: int, start: int, end: int) -> bytes | memoryview:
        """Read rows. If one is corrupted, all have the bits of NaN."""
        rows = self._runner.read_rows(slot, start, end)
        return _NAN_BYTE * len(rows) if end > self._corrupted.get(slot, end) else rows

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        """Write rows. Those that were corrupted when they were read are so again."""
        self._runner.write_rows(slot, start, rows)
        if not bytes(rows).strip(_NAN_BYTE):
            self._corrupt(slot, start)

    def read_state(self, slot: int, length: int | None = None) -> bytes | memoryview:
        """Read the recurrent state. If a row of the slot is corrupted, the state has the bits of NaN."""
        state = self._runner.read_state(slot, length)
        return _NAN_BYTE * len(state) if slot in self._corrupted else state

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        """Write the recurrent state. One that was corrupted when it was read is so again."""
        self._runner.write_state(slot, state)
        if not bytes(state).strip(_NAN_BYTE):
            self._corrupt(slot, 0)

    def reset(self, slot: int) -> None:
        """Reset the slot, which is not corrupted any more."""
        self._runner.reset(slot)
        self._corrupted.pop(slot, None)

    def memory(self) -> dict[str, int]:
        """Pass through to the wrapped runner."""
        return self._runner.memory()

    def settle(self) -> None:
        """Pass through to the wrapped runner."""
        self._runner.settle()

    def close(self) -> None:
        """Pass through to the wrapped runner."""
        self._runner.close()

    def _enter(self, tokens: Collection[int]) -> None:
        self._calls += 1
        self._plan.enter(self._calls, tokens)

    def _look(self, slot: int, start: int, tokens: Collection[int]) -> None:
        """Corrupt the slot from row `start` on, if planned."""
        if self._plan.not_finite(self._calls, tokens):
            self._corrupt(slot, start)

    def _leave(self, starts: Mapping[int, int], tokens: Collection[int]) -> None:
        """Raise if planned, and corrupt the slots from these rows on."""
        if self._plan.fails(self._calls, tokens):
            for slot, start in starts.items():
                self._corrupt(slot, start)
            raise PlannedFault(f"planned fault in call {self._calls}")

    def _corrupt(self, slot: int, start: int) -> None:
        self._corrupted[slot] = min(start, self._corrupted.get(slot, start))

    def _seen(self, slot: int, spec: SampleSpec) -> SampleSpec:
        """Return the spec that the runner gets."""
        return SampleSpec(spec.sampling, spec.position, _nan_edits()) if slot in self._corrupted else spec


def _nan_edits() -> LogitEdits:
    """Return edits that make the logits of a row NaN. A mask beside them could remove the NaN again."""
    value = np.ones(1, np.float32)
    return LogitEdits(np.zeros(1, np.int32), np.nan * value, value, value, 0.0 * value)
