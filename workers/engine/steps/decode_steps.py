"""The decode call of a step, with drafts of tokens or without."""

from workers.engine.runner import NotFiniteError
from workers.engine.sequence import EngineSequence, decode_row
from workers.engine.speculation.speculator import Draft, Speculator
from workers.engine.speculation.verification import VerifiedRows, verify
from workers.engine.steps.engine_parts import EngineParts
from workers.engine.steps.outcomes import SequenceOutcomes
from workers.engine.steps.sampled_logprobs import sampled_logprobs
from workers.sampling.logprobs import RowLogprobs


class EngineDecoding:
    """Computes the next tokens of all sequences that decode."""

    def __init__(self, parts: EngineParts, outcomes: SequenceOutcomes) -> None:
        self._outcomes = outcomes
        self._runner = parts.runner
        self._scheduler = parts.scheduler
        self._snapshots = parts.snapshots
        self._stats = parts.stats
        self._clock = parts.clock
        self._budget = parts.budget
        self._images = parts.images
        self._speculator = parts.speculator

    def decode(self, decoding: list[EngineSequence]) -> None:
        """Run one decode step of these sequences."""
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
            logprobs = sampled_logprobs(self._runner, decoding, tokens)
        except Exception as error:  # noqa: BLE001 - any error of a device must end these requests only
            for sequence in decoding:
                self._outcomes.fail(sequence, "decode", error)
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
                self._outcomes.fail(sequence, "decode", NotFiniteError())
            elif self._outcomes.accept(sequence, token, row_logprobs, now):
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
            logprobs = iter(
                sampled_logprobs(self._runner, [each for each, _ in sampled], [token for _, token in sampled], indices)
            )
        except Exception as error:  # noqa: BLE001 - any error of a device must end these requests only
            for sequence in decoding:
                self._outcomes.fail(sequence, "decode", error)
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
                self._outcomes.fail(rows.sequence, "decode", NotFiniteError())
            elif not self._outcomes.accept(rows.sequence, token, row_logprobs, now):
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
            self._outcomes.fail(sequence, "decode", error)
