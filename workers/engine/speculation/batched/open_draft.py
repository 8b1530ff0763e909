"""The draft of one sequence while a drafter appends tokens to it, each sampled as the target samples at its place."""

from collections.abc import Callable
from typing import Self

import structlog

from workers.engine.logits_processors import LogitsProcessors
from workers.engine.request import ConstraintFailed
from workers.engine.sequence import EngineSequence, sample_spec
from workers.sampling.sample_spec import SampleSpec

Trial = tuple[LogitsProcessors, Callable[[], None]]


class OpenDraft:
    """A draft of up to `most` tokens, to be closed before the sequence gets a token.

    `spec` is the specification of the next sample: the noise, filters, edits and mask with which the target samples it.
    A drafter whose logits are those of the target then drafts what the target samples, at any temperature
    (https://arxiv.org/abs/2408.07978).
    """

    def __init__(self, sequence: EngineSequence, most: int, spec: SampleSpec, trial: Trial | None) -> None:
        self.sequence = sequence
        self.tokens: list[int] = []
        self.specs: list[SampleSpec] = []
        """Specifications of the samples after each of the tokens."""
        self.spec = spec
        self._most = most
        self._trial = trial
        self._ended = False

    @classmethod
    def of(cls, sequence: EngineSequence, most: int) -> Self | None:
        """Open a draft; None for a sequence whose constraint cannot be copied, and after an error of it."""
        try:
            spec = sample_spec(sequence)
            trial = None if sequence.processors is None else sequence.processors.trial()
        except ConstraintFailed:  # so does the sequence in this step
            return None
        except Exception as error:  # noqa: BLE001 - an error of one sequence must not end the drafts of others
            _failed(sequence, error)
            return None
        return None if trial is None and sequence.processors is not None else cls(sequence, most, spec, trial)

    @property
    def done(self) -> bool:
        """No token can be appended any more."""
        return self._ended or len(self.tokens) >= self._most

    def append(self, token: int) -> None:
        """Append the token that was sampled by `spec`. One after which nothing is sampled ends the draft without it,
        because it ends the answer, or is not allowed."""
        spec = None if token in self.sequence.request.eos else self._after(token)
        if spec is None:
            self._ended = True
            return
        self.tokens.append(token)
        self.specs.append(spec)
        self.spec = spec

    def close(self) -> None:
        """Return the sequence's processors to the state before the draft."""
        if self._trial is not None:
            self._trial[1]()

    def _after(self, token: int) -> SampleSpec | None:
        """Return how to sample after a token; None if nothing is."""
        sampling, position = self.sequence.request.sampling, self.spec.position + 1
        if self._trial is None:
            return SampleSpec(sampling, position)
        processors, _ = self._trial
        try:
            processors.accept(token)
            return None if processors.exhausted else processors.draft_spec(sampling, position)
        except ConstraintFailed:  # if the answer gets there, it fails then
            return None
        except Exception as error:  # noqa: BLE001 - as in `of`
            _failed(self.sequence, error)
            return None


def _failed(sequence: EngineSequence, error: Exception) -> None:
    sequence.drafts_failed = True
    structlog.get_logger().error("draft_failed", stream=sequence.request.stream, exc_info=error)
