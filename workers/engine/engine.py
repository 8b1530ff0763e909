"""Batch engine: carries out the scheduler's decisions on a runner and contains every failure.

Used by one thread. A request that `submit` has taken ends exactly once: by a `SequenceEnd` or a `SequenceFailure` of a
step, or by the `SequenceEnd` that `cancel` or `finish` returns.
"""

import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import structlog
from numpy.typing import NDArray

from protocol.commands import ReadRows, WriteRows
from protocol.errors import ErrorCode
from protocol.events import Gauges, SharedTier
from protocol.request import FinishReason
from protocol.scheduling import SchedulerPolicy
from workers.engine.finite_check import has_finite_logits
from workers.engine.images.image_encodings import ImageEncodings
from workers.engine.images.image_row_cache import DEFAULT_CACHE_BYTES, ImageRowCache
from workers.engine.kv_slots import RetentionChange
from workers.engine.pooled.pooled_calls import finish_pooling, pool_chunks
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import SPARSE, EngineRequest, RequestRefused, check_score
from workers.engine.runner import NotFiniteError, Runner, RunnerCapabilities
from workers.engine.scheduler import Scheduler
from workers.engine.scheduling.token_budget import DEFAULT_STEP_TOKENS, TokenBudget
from workers.engine.scoring import score
from workers.engine.sequence import EngineSequence, ScheduledChunk, decode_row, sequence_end, sequence_start
from workers.engine.slot_allocation import RESERVED_ROWS
from workers.engine.slot_reset import SlotResets
from workers.engine.sparse.sparse_prefill import SparsePrefill
from workers.engine.speculation.speculator import Draft, Speculator
from workers.engine.speculation.verification import VerifiedRows, verify
from workers.engine.states.prefix_states import PrefixStates
from workers.engine.states.slot_snapshots import SlotSnapshots
from workers.engine.states.snapshot_store import SnapshotStore
from workers.engine.stats import EngineStats
from workers.engine.step_result import PromptPart, RunningStep, SequenceEnd, StepResult, Token
from workers.engine.tier.prefix_tier import ALONE_RESTORE_S, RESTORE_S, PrefixTier
from workers.engine.transfer.row_exchange import RowExchange, RowsRead, RowsTaken
from workers.sampling.logprobs import RowLogprobs

REPORTED_ROW_COST = 2
"""Cost of a row with its logits, in prompt tokens without."""


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
        self._images_turn = False
        """The last step with images was theirs, or none else had work."""
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
        self._snapshots = SlotSnapshots(runner, states)
        self._tier = tier
        self._speculator = speculator
        self._sparse = sparse
        self._clock = clock
        self._log = structlog.get_logger()
        self._stats = EngineStats()
        self._step = RunningStep()
        self._resets = SlotResets(runner, self._scheduler.slots, self._step.slot_failed)
        self._exchange = RowExchange(runner, self._scheduler.slots, self._resets, prefixes, self._snapshots)

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
        return self._remove(stream, "cancelled")

    def finish(self, stream: int) -> SequenceEnd | None:
        """End a sequence whose answer is complete, because a stop string was found. Otherwise like `cancel`."""
        return self._remove(stream, "stop")

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
            self._restore(self._tier)
        encoded = False
        if self._images is not None and self._image_rows is not None:
            encoded = self._encode_images(self._images, self._image_rows, now)
        if (alone := self._scheduler.reports_alone) is not None:
            self._scheduler.reported_rows = self._reported_rows(alone=alone)
        while call := None if encoded else self._scheduler.next_call():
            if call[0].targets is None:
                self._prefill(call)
            else:
                self._prefill_reported(call[0], call[0].targets)
        if decoding := self._scheduler.decoding():
            self._decode(decoding)
        if self._tier is not None:
            self._tier.save(self._scheduler.held_rows(), idle=self._scheduler.idle, step_s=self._clock() - now)
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
            self._forget(sequence)
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

    def _encode_images(self, images: ImageEncodings, rows: ImageRowCache, now: float) -> bool:
        """Compute parts of the images that prompts wait for, and drop rows of which none has a need. While others
        decode, images and prompts take turns: returns whether this step is that of images alone. The prompt of an image
        that is complete waits for the next one."""
        needed = self._scheduler.needed_images()
        rows.trim(needed)
        if not needed and not images.active:
            return False
        (wants, others), decoding = self._scheduler.image_wants(), self._scheduler.active_rows > 0
        beside = decoding and bool(wants) and others
        self._images_turn = not (beside and self._images_turn)
        if beside and not self._images_turn:
            return False
        failed = images.step(wants, needed, now, decoding=decoding, others=others)
        for image in failed:
            for sequence, placed in image.wants:
                self._step.image_failed(sequence.request.stream, placed.field, image.error)
                self._scheduler.remove(sequence.request.stream)
                self._forget(sequence)
        if failed:
            self._resets.reset_dirty()
        return decoding and bool(wants)

    def _restore(self, tier: PrefixTier) -> None:
        """Take rows from the prefix tier, for sequences for which the slots have fewer."""
        failed: list[tuple[EngineSequence, Exception]] = []
        for sequence, copy in self._scheduler.begin_restores(tier.rows_for, tier.block_rows):
            self._stats.started += not sequence.restarted
            try:
                if copy is not None:
                    self._snapshots.copy(copy)
            except Exception as error:  # noqa: BLE001 - any error of a device must end this request only
                failed.append((sequence, error))
        for sequence, reason in failed:  # after the last copy, as in `_copied`
            self._fail(sequence, "prefill", reason)
        until = tier.clock() + (RESTORE_S if self._scheduler.active_rows else ALONE_RESTORE_S)
        for sequence in self._scheduler.restoring():
            try:
                for rows in tier.restore(sequence, until):
                    self._scheduler.restored(sequence, rows)
            except Exception as error:  # noqa: BLE001 - any error of a device must end this request only
                self._fail(sequence, "prefill", error)
            if tier.clock() >= until:
                break

    def _prefill(self, call: list[ScheduledChunk]) -> None:
        self._stats.started += sum(_starts(scheduled) for scheduled in call)
        if not (call := self._copied(call)):
            return
        began = self._clock()
        try:
            if call[0].sequence.pooled:
                pool_chunks(self._runner, call)
                tokens: list[int | None] = [None] * len(call)
            else:
                tokens = self._runner.prefill(
                    [scheduled.chunk for scheduled in call], [scheduled.sample for scheduled in call]
                )
            if len(tokens) != len(call):
                raise RuntimeError(f"the runner returned {len(tokens)} tokens for {len(call)} chunks")
            sampled = [
                (scheduled.sequence, token)
                for scheduled, token in zip(call, tokens, strict=True)
                if scheduled.sample is not None
            ]
            logprobs = iter(self._logprobs([sequence for sequence, _ in sampled], [token for _, token in sampled]))
        except Exception as error:  # noqa: BLE001 - any error of a device must end these requests only
            for scheduled in call:
                self._fail(scheduled.sequence, "prefill", error)
            return
        now = self._clock()
        lengths, block = [len(scheduled.chunk.tokens) for scheduled in call], self._capabilities.block_rows
        if self._budget is not None:
            self._budget.record_prefill(sum(-(-length // block) * block for length in lengths), now - began)
        self._stats.prefill_tokens += sum(lengths)
        for scheduled, token in zip(call, tokens, strict=True):
            if scheduled.sequence.pooled:
                self._pooled(scheduled, now)
            else:
                self._prefilled(scheduled, token, None if scheduled.sample is None else next(logprobs), now)

    def _pooled(self, scheduled: ScheduledChunk, now: float) -> None:
        """Note that a chunk of a prompt is pooled; its sequence ends with the vector when the prompt is complete."""
        sequence = scheduled.sequence
        self._scheduler.prefilled(scheduled)
        if sequence.cached.rows < sequence.prefill_length:
            return
        sequence.first_token_at = now
        try:
            finish_pooling(sequence)
        except Exception as error:  # noqa: BLE001 - any error of a pooler must end this request only
            self._fail(sequence, "pooling", error)
            return
        self._scheduler.remove(sequence.request.stream)
        self._resets.reset_dirty()
        self._end(sequence, "stop", now)

    def _reported_rows(self, *, alone: bool) -> int:
        """Return the rows of a chunk with log-probabilities: as many as fit into the budget, or the fewest."""
        sizes, budget = self._runner.reported_rows, self._scheduler.step_tokens
        room = (budget - self._scheduler.active_rows) // REPORTED_ROW_COST
        rows = sizes[-1] if alone else max((size for size in sizes if size <= room), default=sizes[0])
        return min(rows, budget)

    def _prefill_reported(self, scheduled: ScheduledChunk, targets: tuple[int, ...]) -> None:
        """Prefill a chunk with the log-probabilities of its tokens. It has no rows of other sequences to copy."""
        sequence, chunk = scheduled.sequence, scheduled.chunk
        self._stats.started += _starts(scheduled)
        try:
            token, values = self._runner.prefill_reported(chunk, scheduled.sample, targets)
            if len(values) != len(targets):
                raise RuntimeError(f"the runner returned {len(values)} log-probabilities for {len(targets)} tokens")
            (row_logprobs,) = self._logprobs([sequence], [token])
        except Exception as error:  # noqa: BLE001 - any error of a device must end this request only
            self._fail(sequence, "prefill", error)
            return
        self._stats.prefill_tokens += len(chunk.tokens)
        self._step.prompt_parts.append(PromptPart.of(sequence.request.stream, chunk, targets, values))
        now = self._clock()
        self._prefilled(scheduled, token, row_logprobs, now)
        if sequence.request.max_tokens == 0 and sequence.cached.rows == sequence.prefill_length:
            self._scheduler.remove(sequence.request.stream)
            self._resets.reset_dirty()
            self._end(sequence, "length", now)

    def _copied(self, call: list[ScheduledChunk]) -> list[ScheduledChunk]:
        """Make the copies that chunks need, and fail the sequences whose copy fails. Return the other chunks.

        Sequences fail after the last copy, because that evicts their sources, which other chunks may copy from.
        """
        ready: list[ScheduledChunk] = []
        failed: list[tuple[EngineSequence, Exception]] = []
        for scheduled in call:
            try:
                if scheduled.copy is not None:
                    self._snapshots.copy(scheduled.copy)
            except Exception as error:  # noqa: BLE001 - any error of a device must end this request only
                failed.append((scheduled.sequence, error))
            else:
                ready.append(scheduled)
        for sequence, reason in failed:
            self._fail(sequence, "prefill", reason)
        return ready

    def _prefilled(
        self, scheduled: ScheduledChunk, token: int | None, row_logprobs: RowLogprobs | None, now: float
    ) -> None:
        sequence = scheduled.sequence
        self._scheduler.prefilled(scheduled)
        if scheduled.sample is None or token is not None:
            self._snapshots.take(sequence)
        self._take_no_more(sequence)
        if scheduled.sample is None:
            return
        if token is not None:
            if sequence.request.images is not None:
                sequence.request.images.release()
            if sequence.first_token_at is None:
                if sequence.cached_tokens:  # neither a prefix that was recomputed nor the sequence's own is a hit
                    self._stats.record_prefix_hit(sequence.cached_tokens)
                sequence.first_token_at = now
                if self._tier is not None and sequence.kept is None:
                    sequence.created_tokens = self._tier.created_tokens(sequence)
                self._step.starts.append(sequence_start(sequence, now))
            self._accept(sequence, token, row_logprobs, now)
        elif sequence.reused:
            self._start_over(sequence)
        else:
            self._fail(sequence, "prefill", NotFiniteError())

    def _start_over(self, sequence: EngineSequence) -> None:
        """Recompute a prompt without the rows that it took from another sequence.

        A NaN in that sequence may have corrupted earlier rows of the same call, because a masked value is still
        multiplied by 0. Without those rows the logits of this sequence may be finite.
        """
        self._log.warning(
            "prefix_distrusted", stream=sequence.request.stream, slot=sequence.slot, tokens=sequence.reused
        )
        self._scheduler.evict_suspects(sequence, non_finite=True)
        if self._tier is not None:
            self._tier.distrust(sequence)
        try:
            self._runner.reset(sequence.slot)
        except Exception as error:  # noqa: BLE001 - any error of a device must end this request only
            self._fail(sequence, "reset", error)
        else:
            self._scheduler.start_over(sequence)
        self._resets.reset_dirty()

    def _decode(self, decoding: list[EngineSequence]) -> None:
        self._stats.decode_steps += 1
        if self._speculator is not None:
            drafts = self._speculator.plan(decoding, prompts=self._scheduler.prefills)
            if drafts is not None:
                self._decode_drafts(self._speculator, decoding, drafts)
                return
        began = self._clock()
        try:
            tokens = self._runner.decode([decode_row(sequence) for sequence in decoding])
            if len(tokens) != len(decoding):
                raise RuntimeError(f"the runner returned {len(tokens)} tokens for {len(decoding)} rows")
            logprobs = self._logprobs(decoding, tokens)
        except Exception as error:  # noqa: BLE001 - any error of a device must end these requests only
            for sequence in decoding:
                self._fail(sequence, "decode", error)
            return
        self._scheduler.decoded(decoding)
        now = self._clock()
        if self._budget is not None:
            self._budget.record_decode(now - began)
        if self._images is not None:
            self._images.record_decode(now - began)
        if self._speculator is not None:
            self._speculator.record_step(now - began, len(decoding))
        for sequence, token, row_logprobs in zip(decoding, tokens, logprobs, strict=True):
            if token is None:
                self._fail(sequence, "decode", NotFiniteError())
            elif self._accept(sequence, token, row_logprobs, now):
                self._snapshots.take_decoded(sequence)

    def _decode_drafts(self, speculator: Speculator, decoding: list[EngineSequence], drafts: list[Draft]) -> None:
        """Decode with a draft of each sequence, some of which are empty."""
        began = self._clock()
        try:
            pairs = zip(decoding, drafts, strict=True)
            rows = [row for sequence, draft in pairs for row in draft.rows(sequence)]
            verified = verify(decoding, drafts, self._runner.decode(rows))
            sampled = [(each.sequence, token) for each in verified for token in each.tokens]
            indices = [each.first_row + at for each in verified for at in range(len(each.tokens))]
            logprobs = iter(self._logprobs([each for each, _ in sampled], [token for _, token in sampled], indices))
        except Exception as error:  # noqa: BLE001 - any error of a device must end these requests only
            for sequence in decoding:
                self._fail(sequence, "decode", error)
            return
        now = self._clock()
        if self._images is not None:
            self._images.record_decode(now - began)
        for each in verified:
            if drafted := len(each.draft.tokens):
                accepted = max(0, len(each.tokens) - 1)
                self._stats.record_draft(drafted, accepted)
                speculator.verified(each.sequence, each.draft, accepted)
            self._verified(each, [next(logprobs) for _ in each.tokens], now)
        speculator.record_drafts(now - began, len(decoding), len(rows), len(sampled))

    def _verified(self, rows: VerifiedRows, logprobs: list[RowLogprobs | None], now: float) -> None:
        """Append the tokens that a sequence gets from its rows, up to one that ends it."""
        if not rows.tokens:
            self._drop_draft(rows.sequence)
        for token, row_logprobs in zip(rows.tokens, logprobs, strict=True):
            self._scheduler.decoded([rows.sequence])
            if token is None:
                self._fail(rows.sequence, "decode", NotFiniteError())
            elif not self._accept(rows.sequence, token, row_logprobs, now):
                break
        else:
            if rows.tokens and rows.tokens[-1] is not None:
                self._snapshots.take_decoded(rows.sequence)

    def _drop_draft(self, sequence: EngineSequence) -> None:
        """Clear the rows of a draft that has led to non-finite logits: without it they may be finite. No further tokens
        are drafted for this sequence."""
        sequence.drafts_failed = True
        try:
            self._runner.copy_prefix(sequence.slot, sequence.slot, sequence.cached.rows)
        except Exception as error:  # noqa: BLE001 - any error of a device must end this request only
            self._fail(sequence, "decode", error)

    def _logprobs(
        self, sampled: list[EngineSequence], tokens: Sequence[int | None], rows: Sequence[int] | None = None
    ) -> list[RowLogprobs | None]:
        """Return the log-probabilities of tokens that the last call sampled, where the request asks for them. `rows`
        are their indices in that call; None if these are all."""
        wanted = [
            row
            for row, sequence in enumerate(sampled)
            if sequence.request.sampling.logprobs is not None and tokens[row] is not None
        ]
        out: list[RowLogprobs | None] = [None] * len(sampled)
        if wanted:
            reported = self._runner.logprobs(wanted if rows is None else [rows[row] for row in wanted])
            for row, row_logprobs in zip(wanted, reported, strict=True):
                out[row] = row_logprobs
        return out

    def _accept(self, sequence: EngineSequence, token: int, logprobs: RowLogprobs | None, now: float) -> bool:
        """Append a token to a sequence. False if that has ended."""
        if not 0 <= token < self._vocab_size:
            self._fail(sequence, "sampling", ValueError(f"the runner sampled token {token} of {self._vocab_size}"))
            return False
        if sequence.processors is not None and sequence.processors.late_end is not None:
            self._end_late(sequence, sequence.processors.late_end, now)
            return False
        self._stats.decode_tokens += 1
        self._step.tokens.append(Token(sequence.request.stream, token, logprobs))
        try:
            reason = self._scheduler.accept(sequence, token)
        except Exception as error:  # noqa: BLE001 - an error of a constraint must end this request only
            self._scheduler.remove(sequence.request.stream)
            self._forget(sequence)
            self._resets.reset_dirty()
            self._step.constraint_failed(sequence.request.stream, error)
            return False
        if reason is not None:
            self._scheduler.remove(sequence.request.stream)
            self._resets.reset_dirty()
            self._end(sequence, reason, now)
        return reason is None

    def _end_late(self, sequence: EngineSequence, end: Exception | Literal["stop"], now: float) -> None:
        """End a sequence whose late mask allows no token, without the token that was sampled."""
        self._scheduler.remove(sequence.request.stream)
        self._resets.reset_dirty()
        if isinstance(end, Exception):
            self._forget(sequence)
            self._step.constraint_failed(sequence.request.stream, end)
        else:
            self._end(sequence, end, now)

    def _admit(self, now: float) -> None:
        for sequence, reason in self._scheduler.admit(now):
            self._end(sequence, reason, now)

    def _end(self, sequence: EngineSequence, reason: FinishReason, now: float) -> None:
        if sequence.slot < 0:  # its resumed tokens are the whole answer
            self._stats.started += 1
        self._stats.completed += 1
        self._forget(sequence)
        self._step.ends.append(sequence_end(sequence, reason, now))

    def _remove(self, stream: int, reason: FinishReason) -> SequenceEnd | None:
        sequence = self._scheduler.remove(stream)
        if sequence is None:
            return None
        self._forget(sequence)
        if sequence.slot >= 0:
            self._resets.reset_dirty()
        if reason != "cancelled":
            self._stats.completed += 1
        return sequence_end(sequence, reason, self._clock())

    def _forget(self, sequence: EngineSequence) -> None:
        """Do nothing more for a sequence that has ended."""
        self._take_no_more(sequence)
        if self._images is not None:
            self._images.forget(sequence.request.stream)

    def _take_no_more(self, sequence: EngineSequence) -> None:
        """Read nothing more for a sequence from the prefix tier, keep no state of it for transfers, and score its
        prompt no further."""
        self._exchange.forget(sequence.request.stream)
        if self._tier is not None:
            self._tier.forget(sequence.request.stream)
        if self._sparse is not None:
            self._sparse.forget(sequence)

    def _fail(self, sequence: EngineSequence, call: str, error: Exception) -> None:
        self._step.fail(sequence.request.stream, sequence.slot, call, error)
        self._forget(sequence)
        self._scheduler.remove(sequence.request.stream, failed=True)
        # A call that raises has written to the slots that it names, and to no others: their sequences all fail.
        self._scheduler.evict_suspects(sequence, non_finite=isinstance(error, NotFiniteError))
        self._resets.reset_dirty()

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


def _starts(scheduled: ScheduledChunk) -> bool:
    """This is the first chunk of a sequence that has not run before."""
    return scheduled.is_first and not scheduled.sequence.restarted
