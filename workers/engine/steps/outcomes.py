"""Tokens that sequences get, and how they end."""

from typing import Literal

from protocol.request import FinishReason
from workers.engine.runner import NotFiniteError
from workers.engine.sequence import EngineSequence, sequence_end
from workers.engine.step_result import SequenceEnd, Token
from workers.engine.steps.engine_parts import EngineParts
from workers.sampling.logprobs import RowLogprobs


class SequenceOutcomes:
    """Gives sequences their tokens, and ends them with their only terminal event."""

    def __init__(self, parts: EngineParts) -> None:
        self._vocab_size = parts.runner.capabilities.vocab_size
        self._scheduler = parts.scheduler
        self._resets = parts.resets
        self._exchange = parts.exchange
        self._step = parts.step
        self._stats = parts.stats
        self._clock = parts.clock
        self._images = parts.images
        self._tier = parts.tier
        self._sparse = parts.sparse

    def accept(self, sequence: EngineSequence, token: int, logprobs: RowLogprobs | None, now: float) -> bool:
        """Append a token to a sequence. False if that has ended."""
        if not 0 <= token < self._vocab_size:
            self.fail(sequence, "sampling", ValueError(f"the runner sampled token {token} of {self._vocab_size}"))
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
            self.forget(sequence)
            self._resets.reset_dirty()
            self._step.constraint_failed(sequence.request.stream, error)
            return False
        if reason is not None:
            self._scheduler.remove(sequence.request.stream)
            self._resets.reset_dirty()
            self.end(sequence, reason, now)
        return reason is None

    def end(self, sequence: EngineSequence, reason: FinishReason, now: float) -> None:
        """End a sequence whose answer is complete."""
        if sequence.slot < 0:  # its resumed tokens are the whole answer
            self._stats.started += 1
        self._stats.completed += 1
        self.forget(sequence)
        self._step.ends.append(sequence_end(sequence, reason, now))

    def remove(self, stream: int, reason: FinishReason) -> SequenceEnd | None:
        """End a sequence in any phase; return None if it is unknown."""
        sequence = self._scheduler.remove(stream)
        if sequence is None:
            return None
        self.forget(sequence)
        if sequence.slot >= 0:
            self._resets.reset_dirty()
        if reason != "cancelled":
            self._stats.completed += 1
        return sequence_end(sequence, reason, self._clock())

    def forget(self, sequence: EngineSequence) -> None:
        """Do nothing more for a sequence that has ended."""
        self.take_no_more(sequence)
        if self._images is not None:
            self._images.forget(sequence.request.stream)

    def take_no_more(self, sequence: EngineSequence) -> None:
        """Read nothing more for a sequence from the prefix tier, keep no state of it for transfers, and score its
        prompt no further."""
        self._exchange.forget(sequence.request.stream)
        if self._tier is not None:
            self._tier.forget(sequence.request.stream)
        if self._sparse is not None:
            self._sparse.forget(sequence)

    def fail(self, sequence: EngineSequence, call: str, error: Exception) -> None:
        """End a sequence for which a call of the runner has raised."""
        self._step.fail(sequence.request.stream, sequence.slot, call, error)
        self.forget(sequence)
        if self._tier is not None:
            self._tier.drop_unproven(sequence)
        self._scheduler.remove(sequence.request.stream, failed=True)
        # A call that raises has written to the slots that it names, and to no others: their sequences all fail.
        self._scheduler.evict_suspects(sequence, non_finite=isinstance(error, NotFiniteError))
        self._resets.reset_dirty()

    def _end_late(self, sequence: EngineSequence, end: Exception | Literal["stop"], now: float) -> None:
        """End a sequence whose late mask allows no token, without the token that was sampled."""
        self._scheduler.remove(sequence.request.stream)
        self._resets.reset_dirty()
        if isinstance(end, Exception):
            self.forget(sequence)
            self._step.constraint_failed(sequence.request.stream, end)
        else:
            self.end(sequence, end, now)
