"""The batch engine: the scheduler's decisions carried out on a runner, with every failure contained.

Used by one thread. A request that was taken by `submit` ends exactly once: by a `SequenceEnd` or a `SequenceFailure` of
a step, or by the `SequenceEnd` that `cancel` or `finish` returns.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import structlog
from numpy.typing import NDArray

from protocol.errors import ErrorCode
from protocol.events import Gauges
from protocol.request import FinishReason
from workers.engine.finite_check import has_finite_logits
from workers.engine.prefix_match import PrefixPolicy
from workers.engine.request import EngineRequest, RequestRefused, check_score
from workers.engine.runner import NotFiniteError, Runner, RunnerCapabilities
from workers.engine.scheduler import Scheduler
from workers.engine.scoring import score
from workers.engine.sequence import EngineSequence, ScheduledChunk, decode_row, sequence_end
from workers.engine.stats import EngineStats
from workers.engine.step_result import RunningStep, SequenceEnd, StepResult, Token
from workers.engine.token_budget import DEFAULT_STEP_TOKENS, TokenBudget
from workers.sampling.logprobs import RowLogprobs

NO_STREAM = -1
"""Holds a slot for what is nobody's; streams are not negative."""


class BatchEngine:
    """Scheduler and runner together.

    `max_queue` bounds the sequences that wait for a slot, `step_tokens` what one step computes (None is what measured
    costs allow, see `workers.engine.token_budget`), `kv_tokens` the cache rows in use, and `prefixes` what is kept of
    ended sequences (see `Scheduler`); `clock` gives seconds and is used for the times in `SequenceEnd` and for the
    longest step only.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        max_queue: int,
        step_tokens: int | None,
        kv_tokens: int | None = None,
        prefixes: PrefixPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._capabilities = runner.capabilities
        self._vocab_size = self._capabilities.vocab_size
        self._budget = TokenBudget(self._capabilities.prefill_chunks) if step_tokens is None else None
        self._scheduler = Scheduler(
            self._capabilities,
            max_queue=max_queue,
            step_tokens=DEFAULT_STEP_TOKENS if step_tokens is None else step_tokens,
            kv_tokens=kv_tokens,
            prefixes=prefixes,
        )
        self._clock = clock
        self._log = structlog.get_logger()
        self._stats = EngineStats()
        self._step = RunningStep()

    @property
    def capabilities(self) -> RunnerCapabilities:
        """The runner's."""
        return self._capabilities

    @property
    def idle(self) -> bool:
        """A step would do nothing: no sequence is queued or live, and no slot waits for its reset.

        A slot that cannot be reset keeps the engine from idling, so that failing steps are counted until its owner
        gives up.
        """
        return self._scheduler.idle and not self._scheduler.slots.dirty

    @property
    def failures_in_a_row(self) -> int:
        """See `RunningStep`."""
        return self._step.failures_in_a_row

    @property
    def graphs_failed(self) -> int:
        """The runner's. From any thread: what is prepared in the background fails while no step is run."""
        return self._runner.graphs_failed

    def gauges(self) -> Gauges:
        return self._stats.gauges(self._scheduler.slots, self._scheduler.queued, self._runner.graphs_failed)

    def submit(self, request: EngineRequest) -> None:
        """Queue a request. Raises `RequestRefused`: OVERLOADED, or INVALID and CONTEXT with the field at fault."""
        self._scheduler.submit(request, self._clock())

    def cancel(self, stream: int) -> SequenceEnd | None:
        """End a sequence now, in whatever phase it is; None when it is unknown. Its slot is available on return."""
        return self._take_out(stream, "cancelled")

    def finish(self, stream: int) -> SequenceEnd | None:
        """Like `cancel`, for a sequence that ended well outside of the engine: a stop string was found."""
        return self._take_out(stream, "stop")

    def step(self) -> StepResult:
        """Run one step. Never raises for a failure of the runner; a step of an idle engine does nothing."""
        if self.idle:
            return StepResult((), (), (), False)
        self._reset_dirty()
        now = self._clock()
        if self._budget is not None and self._scheduler.prompts:
            self._scheduler.step_tokens = self._budget.step_tokens(self._scheduler.active_rows)
        self._admit(now)
        while (slot := self._scheduler.evict_for_queue()) is not None:
            self._reset(slot)
            self._admit(now)
        while call := self._scheduler.next_call():
            self._prefill(call)
        if decoding := self._scheduler.decoding():
            self._decode(decoding)
        return self._close_step(self._clock() - now)

    def score(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        """Log-likelihoods of tokens[1:], see `workers.engine.scoring`. Runs at once, in a slot of its own.

        Raises `RequestRefused` (INVALID or CONTEXT for the tokens, OVERLOADED when no slot is free), and what the
        runner raises; the slot is reset either way.
        """
        check_score(tokens, self._vocab_size, self._capabilities.context)
        slots = self._scheduler.slots
        while (slot := slots.take(NO_STREAM, len(tokens))) is None:
            if slots.oldest is None:
                raise RequestRefused(ErrorCode.OVERLOADED, "no slot is free to score in")
            retained = slots.oldest
            slots.evict(retained)
            self._reset(retained)
        try:
            return score(self._runner, slot, tokens)
        finally:
            slots.release(slot)
            self._reset(slot)

    def settle(self) -> None:
        """Wait for the runner to be as fast as it gets: for measurements, not for serving."""
        self._runner.settle()

    def close(self) -> None:
        """Close the runner. Nothing may be called after."""
        self._runner.close()

    def _prefill(self, call: list[ScheduledChunk]) -> None:
        self._stats.started += sum(work.is_first for work in call)
        if not (call := self._copied(call)):
            return
        try:
            began = self._clock()
            tokens = self._runner.prefill([work.chunk for work in call], [work.sample for work in call])
            if len(tokens) != len(call):
                raise RuntimeError(f"the runner returned {len(tokens)} tokens for {len(call)} chunks")
            sampled = [
                (work.sequence, token) for work, token in zip(call, tokens, strict=True) if work.sample is not None
            ]
            logprobs = iter(self._logprobs([sequence for sequence, _ in sampled], [token for _, token in sampled]))
        except Exception as error:  # noqa: BLE001 - whatever a device raises must end these requests only
            for work in call:
                self._fail(work.sequence, "prefill", error)
            return
        now = self._clock()
        lengths, block = [len(work.chunk.tokens) for work in call], self._capabilities.block_rows
        if self._budget is not None:
            self._budget.record_prefill(sum(-(-length // block) * block for length in lengths), now - began)
        self._stats.prefill_tokens += sum(lengths)
        for work, token in zip(call, tokens, strict=True):
            self._prefilled(work, token, None if work.sample is None else next(logprobs), now)

    def _copied(self, call: list[ScheduledChunk]) -> list[ScheduledChunk]:
        """Make the copies that chunks need, and end those whose copy fails. Returns the others.

        They end after the last copy: what is retained is forgotten with them, and the others copy from it.
        """
        ready: list[ScheduledChunk] = []
        failed: list[tuple[EngineSequence, Exception]] = []
        for work in call:
            try:
                if work.copy is not None:
                    self._runner.copy_prefix(work.copy.source, work.copy.target, work.copy.length)
            except Exception as error:  # noqa: BLE001 - whatever a device raises must end this request only
                failed.append((work.sequence, error))
            else:
                ready.append(work)
        for sequence, reason in failed:
            self._fail(sequence, "prefill", reason)
        return ready

    def _prefilled(self, work: ScheduledChunk, token: int | None, likely: RowLogprobs | None, now: float) -> None:
        sequence = work.sequence
        self._scheduler.prefilled(work)
        if work.sample is None:
            return
        sequence.first_token_at = now
        if token is not None:
            if sequence.reused:  # what is distrusted and computed anew was no hit
                self._stats.record_prefix_hit(sequence.reused)
            self._accept(sequence, token, likely, now)
        elif sequence.reused:
            self._start_over(sequence)
        else:
            self._fail(sequence, "prefill", NotFiniteError())

    def _start_over(self, sequence: EngineSequence) -> None:
        """Compute a prompt without the rows that it took from another sequence.

        What is no number in that one may have spoilt rows before it, which were computed in the same call: a masked
        value is multiplied by 0 all the same. Alone this sequence may well have numbers.
        """
        self._log.warning(
            "prefix_distrusted", stream=sequence.request.stream, slot=sequence.slot, tokens=sequence.reused
        )
        self._scheduler.evict_all()
        try:
            self._runner.reset(sequence.slot)
        except Exception as error:  # noqa: BLE001 - whatever a device raises must end this request only
            self._fail(sequence, "reset", error)
        else:
            self._scheduler.start_over(sequence)
        self._reset_dirty()

    def _decode(self, decoding: list[EngineSequence]) -> None:
        self._stats.decode_steps += 1
        began = self._clock()
        try:
            tokens = self._runner.decode([decode_row(sequence) for sequence in decoding])
            if len(tokens) != len(decoding):
                raise RuntimeError(f"the runner returned {len(tokens)} tokens for {len(decoding)} rows")
            logprobs = self._logprobs(decoding, tokens)
        except Exception as error:  # noqa: BLE001 - whatever a device raises must end these requests only
            for sequence in decoding:
                self._fail(sequence, "decode", error)
            return
        self._scheduler.decoded(decoding)
        now = self._clock()
        if self._budget is not None:
            self._budget.record_decode(now - began)
        for sequence, token, likely in zip(decoding, tokens, logprobs, strict=True):
            if token is None:
                self._fail(sequence, "decode", NotFiniteError())
            else:
                self._accept(sequence, token, likely, now)

    def _logprobs(self, sampled: list[EngineSequence], tokens: Sequence[int | None]) -> list[RowLogprobs | None]:
        """Of the rows that asked for them, of those that the last call sampled."""
        asked = [sequence.request.sampling.logprobs is not None for sequence in sampled]
        wanted = [row for row, token in enumerate(tokens) if token is not None and asked[row]]
        out: list[RowLogprobs | None] = [None] * len(sampled)
        if wanted:
            for row, likely in zip(wanted, self._runner.logprobs(wanted), strict=True):
                out[row] = likely
        return out

    def _accept(self, sequence: EngineSequence, token: int, logprobs: RowLogprobs | None, now: float) -> None:
        if not 0 <= token < self._vocab_size:
            self._fail(sequence, "sampling", ValueError(f"the runner sampled token {token} of {self._vocab_size}"))
            return
        self._stats.decode_tokens += 1
        self._step.tokens.append(Token(sequence.request.stream, token, logprobs))
        reason = self._scheduler.accept(sequence, token)
        if reason is not None:
            self._scheduler.remove(sequence.request.stream)
            self._reset_dirty()
            self._end(sequence, reason, now)

    def _admit(self, now: float) -> None:
        for sequence, reason in self._scheduler.admit(now):
            self._end(sequence, reason, now)

    def _end(self, sequence: EngineSequence, reason: FinishReason, now: float) -> None:
        if sequence.slot < 0:  # its resumed tokens were all of it
            self._stats.started += 1
        self._stats.completed += 1
        self._step.ends.append(sequence_end(sequence, reason, now))

    def _take_out(self, stream: int, reason: FinishReason) -> SequenceEnd | None:
        sequence = self._scheduler.remove(stream)
        if sequence is None:
            return None
        if sequence.slot >= 0:
            self._reset_dirty()
        if reason != "cancelled":
            self._stats.completed += 1
        return sequence_end(sequence, reason, self._clock())

    def _fail(self, sequence: EngineSequence, call: str, error: Exception) -> None:
        self._step.fail(sequence.request.stream, sequence.slot, call, error)
        self._scheduler.remove(sequence.request.stream, failed=True)
        # What it read may be what made it fail, and may have been copied before: nothing that is retained is trusted.
        self._scheduler.evict_all()
        self._reset_dirty()

    def _reset_dirty(self) -> None:
        for slot in self._scheduler.slots.dirty:
            self._reset(slot)

    def _reset(self, slot: int) -> None:
        """Reset a released slot. One that cannot be reset is not given to anybody; each step tries it again."""
        try:
            self._runner.reset(slot)
        except Exception as error:  # noqa: BLE001 - whatever a device raises must cost this slot only
            self._step.slot_failed(slot, error)
            return
        self._scheduler.slots.clean(slot)

    def _close_step(self, seconds: float) -> StepResult:
        result = self._step.close(self._model_is_finite)
        self._stats.record_step(seconds, failed=result.failed)
        return result

    def _model_is_finite(self) -> bool:
        """Whether the model is well, though a step brought nothing but requests without numbers."""
        slots = self._scheduler.slots
        slot = slots.take(NO_STREAM, 1)
        assert slot is not None  # the request that failed has just left its slot, which was reset
        try:
            return has_finite_logits(self._runner, slot)
        except Exception as error:  # noqa: BLE001 - whatever a device raises counts against it
            self._step.probe_failed(slot, error)
            return False
        finally:
            slots.release(slot)
            self._reset(slot)
