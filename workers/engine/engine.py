"""Batch engine: carries out the scheduler's decisions on a runner and contains every failure.

Used by one thread. A request that `submit` has taken ends exactly once: by a `SequenceEnd` or a `SequenceFailure` of a
step, or by the `SequenceEnd` that `cancel` or `finish` returns.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.commands import ReadRows, WriteRows
from protocol.errors import ErrorCode
from protocol.events import Gauges, SharedTier
from protocol.scheduling import SchedulerPolicy
from workers.engine.finite_check import has_finite_logits
from workers.engine.images.image_encodings import ImageEncodings
from workers.engine.images.image_row_cache import DEFAULT_CACHE_BYTES, ImageRowCache
from workers.engine.kv_slots import RetentionChange
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import SPARSE, EngineRequest, RequestRefused, check_score
from workers.engine.runner import Runner, RunnerCapabilities
from workers.engine.scheduler import Scheduler
from workers.engine.scheduling.token_budget import DEFAULT_STEP_TOKENS, TokenBudget
from workers.engine.scoring import score
from workers.engine.slot_allocation import RESERVED_ROWS
from workers.engine.slot_reset import SlotResets
from workers.engine.sparse.sparse_prefill import SparsePrefill
from workers.engine.speculation.speculator import Speculator
from workers.engine.states.prefix_states import PrefixStates
from workers.engine.states.slot_snapshots import SlotSnapshots
from workers.engine.states.snapshot_store import SnapshotStore
from workers.engine.stats import EngineStats
from workers.engine.step_result import RunningStep, SequenceEnd, StepResult
from workers.engine.steps.decode_steps import EngineDecoding
from workers.engine.steps.engine_parts import EngineParts
from workers.engine.steps.image_steps import ImageSteps
from workers.engine.steps.outcomes import SequenceOutcomes
from workers.engine.steps.prompt_steps import PromptSteps
from workers.engine.steps.tier_steps import TierSteps
from workers.engine.tier.prefix_tier import PrefixTier
from workers.engine.tier.save_budget import LONG_PROMPT
from workers.engine.transfer.row_exchange import RowExchange, RowsRead, RowsTaken


class BatchEngine:
    """Scheduler and runner together.

    `max_queue` limits the sequences that wait for a slot. `step_tokens` is the token budget of a step; None derives it
    from measured costs (`workers.engine.scheduling.token_budget`). `kv_tokens` limits the cache rows in use, and
    `prefixes` what is retained of ended sequences; `policy` is the order of slots and prompts, and `reserved_rows` the
    room for tokens to come (see `Scheduler`). `tier` keeps rows apart from the slots, and is closed with the engine. A
    `speculator`, of the same runner, drafts tokens. `state_cache_bytes` bounds the snapshots of the recurrent states of
    a model that has these, and `image_cache_bytes` the rows of images that are kept, of one with a vision tower.
    `sparse` decides what of prompts is left out. `clock` gives seconds, for the times in `SequenceEnd`, the longest
    step, the policy, how much of an image a step computes, and whether drafts pay.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        max_queue: int,
        step_tokens: int | None,
        kv_tokens: int | None = None,
        prefixes: PrefixPolicy | None = None,
        policy: SchedulerPolicy = "fifo",
        reserved_rows: int = RESERVED_ROWS,
        tier: PrefixTier | None = None,
        speculator: Speculator | None = None,
        state_cache_bytes: int = 0,
        sparse: SparsePrefill | None = None,
        image_cache_bytes: int = DEFAULT_CACHE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._capabilities = runner.capabilities
        self._vocab_size = self._capabilities.vocab_size
        self._budget = TokenBudget(self._capabilities.prefill_chunks) if step_tokens is None else None
        self.snapshots = SnapshotStore(state_cache_bytes) if self._capabilities.state_bytes else None
        """The snapshots of recurrent states; None if the model has none. Changed by the scheduler alone."""
        prefixes = prefixes or PrefixPolicy()
        states = None
        if self.snapshots is not None:
            block_rows = 0 if tier is None else tier.block_rows
            states = PrefixStates(self._capabilities, self.snapshots, prefixes, block_rows)
        self._images: ImageEncodings | None = None
        self._image_rows: ImageRowCache | None = None
        if (vision := runner.vision) is not None:
            self._image_rows = ImageRowCache(vision.width, image_cache_bytes)
            self._images = ImageEncodings(vision, self._image_rows, clock)
        self._scheduler = Scheduler(
            self._capabilities,
            max_queue=max_queue,
            step_tokens=DEFAULT_STEP_TOKENS if step_tokens is None else step_tokens,
            kv_tokens=kv_tokens,
            prefixes=prefixes,
            policy=policy,
            reserved_rows=reserved_rows,
            states=states,
            images=self._image_rows,
            max_patches=0 if vision is None else vision.max_patches,
        )
        self._tier = tier
        self._speculator = speculator
        self._sparse = sparse
        self._clock = clock
        self._stats = EngineStats()
        self._step = RunningStep()
        self._resets = SlotResets(runner, self._scheduler.slots, self._step.slot_failed)
        snapshots = SlotSnapshots(runner, states)
        self._exchange = RowExchange(runner, self._scheduler.slots, self._resets, prefixes, snapshots)
        parts = EngineParts(
            runner=runner,
            scheduler=self._scheduler,
            resets=self._resets,
            snapshots=snapshots,
            exchange=self._exchange,
            step=self._step,
            stats=self._stats,
            clock=clock,
            budget=self._budget,
            images=self._images,
            tier=tier,
            speculator=speculator,
            sparse=sparse,
        )
        self._outcomes = SequenceOutcomes(parts)
        self._restores = TierSteps(parts, self._outcomes)
        self._image_steps = ImageSteps(parts, self._outcomes)
        self._prompts = PromptSteps(parts, self._outcomes)
        self._decoding = EngineDecoding(parts, self._outcomes)

    @property
    def capabilities(self) -> RunnerCapabilities:
        """The runner's capabilities."""
        return self._capabilities

    @property
    def idle(self) -> bool:
        """A step would do nothing: no sequence is queued or running, no slot waits for a reset, and no rows for the
        prefix tier.

        A slot that cannot be reset keeps the engine busy, so that failed steps are counted until its owner gives up.
        """
        return self._scheduler.idle and not self._scheduler.slots.dirty and not (self._tier and self._tier.unsaved)

    @property
    def kv_capacity(self) -> int:
        """Cache rows that all sequences together can have."""
        return self._scheduler.slots.capacity

    @property
    def failures_in_a_row(self) -> int:
        """See `RunningStep`."""
        return self._step.failures_in_a_row

    @property
    def graphs_failed(self) -> int:
        """The runner's count, from any thread: background compilation fails while no step runs."""
        return self._runner.graphs_failed

    def gauges(self) -> Gauges:
        """Return the counts so far and the current state."""
        return self._stats.gauges(
            self._scheduler.slots,
            self._scheduler.queued,
            self._runner.graphs_failed,
            self._tier,
            0 if self._speculator is None else self._speculator.failures,
            self.snapshots,
            self._sparse,
            self._images,
            self._image_rows,
        )

    def take_retention_changes(self) -> tuple[RetentionChange, ...]:
        """Return what has changed of the rows that are retained for reuse, since the last call."""
        return self._scheduler.slots.take_retention_changes()

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. Raises `RequestRefused`: OVERLOADED, or INVALID, CONTEXT and UNSUPPORTED with the invalid
        field."""
        scored = request.sparse is not None and not request.sparse.kept
        if scored and self._sparse is None:
            raise RequestRefused(ErrorCode.UNSUPPORTED, "`sparse_prefill`: nothing scores prompts here", SPARSE)
        if request.sparse is not None and self._capabilities.state_bytes:
            text = "`sparse_prefill`: the model has a recurrent state, which would miss the tokens that are left out"
            if self._capabilities.window_rows:
                text = "`sparse_prefill`: layers with a window keep a ring of rows: serve with --window-cache full"
            raise RequestRefused(ErrorCode.UNSUPPORTED, text, SPARSE)
        now = self._clock()
        sequence = self._scheduler.submit(request, now)
        if scored and self._sparse is not None and (kept := self._sparse.decided(sequence)) is not None:
            self._scheduler.scored(sequence, kept, now)
        if self._tier is not None and request.sparse is None and request.pooled is None:
            self._tier.expect(sequence, self._scheduler.cached_rows)

    def cancel(self, stream: int) -> SequenceEnd | None:
        """End a sequence in any phase; return None if it is unknown. Its slot is available on return."""
        return self._outcomes.remove(stream, "cancelled")

    def finish(self, stream: int) -> SequenceEnd | None:
        """End a sequence whose answer is complete, because a stop string was found. Otherwise like `cancel`."""
        return self._outcomes.remove(stream, "stop")

    def step(self) -> StepResult:
        """Run one step. Never raises for a failure of the runner. A step of an idle engine does nothing."""
        if self.idle:
            return StepResult((), (), (), False)
        self._resets.reset_dirty()
        now = self._clock()
        if self._budget is not None and self._scheduler.prompts:
            self._scheduler.step_tokens = self._budget.step_tokens(self._scheduler.active_rows)
        if self._sparse is not None:
            self._score(self._sparse, now)
        self._make_room(now)
        if self._tier is not None:
            self._restores.restore(self._tier)
        encoded = False
        if self._images is not None and self._image_rows is not None:
            encoded = self._image_steps.encode(self._images, self._image_rows, now)
        if (alone := self._scheduler.reports_alone) is not None:
            self._scheduler.reported_rows = self._prompts.reported_rows(alone=alone)
        while call := None if encoded else self._scheduler.next_call():
            if call[0].targets is None:
                self._prompts.prefill(call)
            else:
                self._prompts.prefill_reported(call[0], call[0].targets)
        if decoding := self._scheduler.decoding():
            self._decoding.decode(decoding)
        if self._tier is not None:
            held = self._scheduler.held_rows(LONG_PROMPT)
            self._tier.save(held, idle=self._scheduler.idle)
        return self._close_step(self._clock() - now)

    @property
    def shared_tier(self) -> SharedTier:
        """The prefix tier, as a gateway knows it; an empty one without it."""
        return SharedTier() if self._tier is None else self._tier.shared

    @property
    def rows_format(self) -> str:
        """The format of cache rows that other workers can take, and that are taken of them; empty if none are."""
        return self._exchange.rows_format

    def read_rows(self, asked: ReadRows) -> RowsRead:
        """Return cache rows of a running sequence, or none if there is no such sequence or row."""
        return self._exchange.read(asked, self._scheduler.find(asked.stream))

    def write_rows(self, given: WriteRows) -> RowsTaken:
        """Retain cache rows that another worker has computed, unless there is no room beside the sequences here."""
        return self._exchange.write(given, queued=self._scheduler.queued)

    def score(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """Return the log-likelihoods of tokens[1:], see `workers.engine.scoring`. Runs at once, in a separate slot.

        Raises `RequestRefused` (INVALID or CONTEXT for the tokens, OVERLOADED if no slot is free), and what the runner
        raises; the slot is reset either way.
        """
        check_score(tokens, self._vocab_size, self._capabilities.context)
        with self._resets.borrow(len(tokens)) as slot:
            return score(self._runner, slot, tokens)

    def memory(self) -> dict[str, int]:
        """See `Runner.memory`."""
        return self._runner.memory()

    def settle(self) -> None:
        """Wait until the runner and the prefix tier have finished their background work. For measurements, not for
        serving."""
        self._runner.settle()
        if self._tier is not None:
            self._tier.settle()
        if self._speculator is not None:
            self._speculator.settle()

    def close(self) -> None:
        """Close the runner, the prefix tier and what drafts. Nothing may be called afterwards."""
        if self._images is not None:
            self._images.close()
        if self._tier is not None:
            self._tier.close()
        if self._speculator is not None:
            self._speculator.close()
        self._runner.close()

    def _make_room(self, now: float) -> None:
        """Decide which sequences have a slot in this step."""
        dirty = self._scheduler.slots.dirty
        for sequence in self._scheduler.expire(now):
            self._step.waited_too_long(sequence.request.stream)
            self._outcomes.forget(sequence)
        self._stats.preemptions += self._scheduler.grow(now)
        self._resets.reset_others(dirty)
        self._admit(now)
        while (made := self._scheduler.make_room()) is not None:
            self._stats.preemptions += made == "preempted"
            self._resets.reset_others(dirty)
            self._admit(now)

    def _score(self, sparse: SparsePrefill, now: float) -> None:
        """Decide what of the next prompt is computed, or do a part of what that takes."""
        waiting = self._scheduler.to_score()
        if not waiting:
            return
        scored = sparse.next(waiting)
        busy = self._scheduler.active_rows > 0
        kept = sparse.advance(scored, self._scheduler.step_tokens if busy else self._capabilities.prefill_chunks[-1])
        if kept is not None:
            for sequence in sparse.same(scored, waiting):
                self._scheduler.scored(sequence, kept, now)

    def _admit(self, now: float) -> None:
        for sequence, reason in self._scheduler.admit(now):
            self._outcomes.end(sequence, reason, now)

    def _close_step(self, seconds: float) -> StepResult:
        if self._image_rows is not None:
            self._image_rows.trim(self._scheduler.needed_images())
        result = self._step.close(self._model_is_finite)
        self._stats.record_step(seconds, failed=result.failed)
        return result

    def _model_is_finite(self) -> bool:
        """Check the model after a step in which every request had non-finite logits."""
        finite = False
        with self._resets.borrow(1) as slot:
            try:
                finite = has_finite_logits(self._runner, slot)
            except Exception as error:  # noqa: BLE001 - any error of a device counts against it
                self._step.probe_failed(slot, error)
        return finite
