"""The draft of one sequence while a drafter appends tokens to it, each sampled as the target samples at its place."""

from collections.abc import Callable
from typing import Self

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

    def __init__(self, sequence: EngineSequence, most: int, trial: Trial | None) -> None:
        self.sequence = sequence
        self.tokens: list[int] = []
        self.specs: list[SampleSpec] = []
        """Specifications of the samples after each of the tokens."""
        self.spec = sample_spec(sequence)
        self._most = most
        self._trial = trial
        self._ended = False

    @classmethod
    def of(cls, sequence: EngineSequence, most: int) -> Self | None:
        """Open a draft; None for a sequence whose constraint cannot be copied."""
        if sequence.processors is None:
            return cls(sequence, most, None)
        trial = sequence.processors.trial()
        return None if trial is None else cls(sequence, most, trial)

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
