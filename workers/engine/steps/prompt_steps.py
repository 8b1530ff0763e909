"""Prefill calls of a step: chunks of prompts, with or without reports, and the first token of each answer."""

import structlog

from workers.engine.pooled.pooled_calls import finish_pooling, pool_chunks
from workers.engine.runner import NotFiniteError
from workers.engine.sequence import EngineSequence, ScheduledChunk, sequence_start
from workers.engine.step_result import PromptPart
from workers.engine.steps.engine_parts import EngineParts
from workers.engine.steps.outcomes import SequenceOutcomes
from workers.engine.steps.sampled_logprobs import sampled_logprobs
from workers.engine.tier.save_budget import LONG_PROMPT
from workers.sampling.logprobs import RowLogprobs

REPORTED_ROW_COST = 2
"""Cost of a row with its logits, in prompt tokens without."""


class PromptSteps:
    """Carries out the prefill calls that the scheduler decides on."""

    def __init__(self, parts: EngineParts, outcomes: SequenceOutcomes) -> None:
        self._outcomes = outcomes
        self._block_rows = parts.runner.capabilities.block_rows
        self._runner = parts.runner
        self._scheduler = parts.scheduler
        self._resets = parts.resets
        self._snapshots = parts.snapshots
        self._step = parts.step
        self._stats = parts.stats
        self._clock = parts.clock
        self._budget = parts.budget
        self._tier = parts.tier
        self._log = structlog.get_logger()

    def prefill(self, call: list[ScheduledChunk]) -> None:
        """Prefill chunks of different sequences, with the copies that they need."""
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
            logprobs = iter(
                sampled_logprobs(self._runner, [sequence for sequence, _ in sampled], [token for _, token in sampled])
            )
        except Exception as error:  # noqa: BLE001 - any error of a device must end these requests only
            for scheduled in call:
                self._outcomes.fail(scheduled.sequence, "prefill", error)
            return
        now = self._clock()
        lengths, block = [len(scheduled.chunk.tokens) for scheduled in call], self._block_rows
        if self._budget is not None:
            self._budget.record_prefill(sum(-(-length // block) * block for length in lengths), now - began)
        if self._tier is not None and any(each.sequence.prefill_length >= LONG_PROMPT for each in call):
            self._tier.computed_long_prompts(now - began)
        self._stats.prefill_tokens += sum(lengths)
        for scheduled, token in zip(call, tokens, strict=True):
            if scheduled.sequence.pooled:
                self._pooled(scheduled, now)
            else:
                self._prefilled(scheduled, token, None if scheduled.sample is None else next(logprobs), now)

    def prefill_reported(self, scheduled: ScheduledChunk, targets: tuple[int, ...]) -> None:
        """Prefill a chunk with the log-probabilities of its tokens. It has no rows of other sequences to copy."""
        sequence, chunk = scheduled.sequence, scheduled.chunk
        self._stats.started += _starts(scheduled)
        try:
            token, values = self._runner.prefill_reported(chunk, scheduled.sample, targets)
            if len(values) != len(targets):
                raise RuntimeError(f"the runner returned {len(values)} log-probabilities for {len(targets)} tokens")
            (row_logprobs,) = sampled_logprobs(self._runner, [sequence], [token])
        except Exception as error:  # noqa: BLE001 - any error of a device must end this request only
            self._outcomes.fail(sequence, "prefill", error)
            return
        self._stats.prefill_tokens += len(chunk.tokens)
        self._step.prompt_parts.append(PromptPart.of(sequence.request.stream, chunk, targets, values))
        now = self._clock()
        self._prefilled(scheduled, token, row_logprobs, now)
        if sequence.request.max_tokens == 0 and sequence.cached.rows == sequence.prefill_length:
            self._scheduler.remove(sequence.request.stream)
            self._resets.reset_dirty()
            self._outcomes.end(sequence, "length", now)

    def reported_rows(self, *, alone: bool) -> int:
        """Return the rows of a chunk with log-probabilities: as many as fit into the budget, or the fewest."""
        sizes, budget = self._runner.reported_rows, self._scheduler.step_tokens
        room = (budget - self._scheduler.active_rows) // REPORTED_ROW_COST
        rows = sizes[-1] if alone else max((size for size in sizes if size <= room), default=sizes[0])
        return min(rows, budget)

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
            self._outcomes.fail(sequence, "pooling", error)
            return
        self._scheduler.remove(sequence.request.stream)
        self._resets.reset_dirty()
        self._outcomes.end(sequence, "stop", now)

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
            self._outcomes.fail(sequence, "prefill", reason)
        return ready

    def _prefilled(
        self, scheduled: ScheduledChunk, token: int | None, row_logprobs: RowLogprobs | None, now: float
    ) -> None:
        sequence = scheduled.sequence
        self._scheduler.prefilled(scheduled)
        if scheduled.sample is None or token is not None:
            self._snapshots.take(sequence)
        self._outcomes.take_no_more(sequence)
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
            self._outcomes.accept(sequence, token, row_logprobs, now)
        elif sequence.reused:
            self._start_over(sequence)
        else:
            self._outcomes.fail(sequence, "prefill", NotFiniteError())

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
            self._outcomes.fail(sequence, "reset", error)
        else:
            self._scheduler.start_over(sequence)
        self._resets.reset_dirty()


def _starts(scheduled: ScheduledChunk) -> bool:
    """This is the first chunk of a sequence that has not run before."""
    return scheduled.is_first and not scheduled.sequence.restarted
