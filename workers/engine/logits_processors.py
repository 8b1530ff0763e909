"""Logits processors of a sequence: penalties, bias, minimum length, banned sequences, DRY, and a constraint.

They depend only on the request, its prompt and the tokens so far. A sequence that resumes on another worker, from its
prompt and the delivered tokens, therefore continues unchanged.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from protocol.request import Sampling
from workers.engine.edits.banned_sequences import BannedSequences
from workers.engine.edits.dry import DryPenalty
from workers.engine.request import Constraint, ConstraintFailed, EngineRequest
from workers.sampling.sample_spec import LogitEdits, SampleSpec

_SPARE = 64
_NONE: Mapping[int, float] = {}
_BIAS, _UP, _DOWN, _MINUS = range(4)


class AllowedTokens:
    """Constraint that allows the same tokens at every position."""

    ended: bool | None = None

    def __init__(self, tokens: Collection[int], vocab_size: int) -> None:
        """Raises `ValueError` if `tokens` is empty or has a token outside of the vocabulary."""
        if not tokens or min(tokens) < 0 or max(tokens) >= vocab_size:
            raise ValueError(f"tokens: give at least one, none outside of a vocabulary of {vocab_size}")
        bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
        bits[list(tokens)] = 1
        self._words = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)

    def accept(self, token: int) -> None:
        """Has no effect."""

    def fork(self) -> Self:
        """Return itself, which never changes."""
        return self

    def forced(self) -> Sequence[int]:
        """Return no token."""
        return ()

    def mask(self) -> NDArray[np.uint32]:
        """Return the mask, which never changes."""
        return self._words


class Penalties:
    """Sparse logit edits: bias, penalties by counts, and end-of-sequence tokens before the minimum length.

    Has a column for each token with an edit. The semantics are those of OpenAI's API (presence and frequency, over
    generated tokens) and transformers (repetition, over the prompt as well), in vLLM's order: bias, repetition, then
    frequency and presence.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int], min_tokens: int, eos: Collection[int]) -> None:
        self._sampling = sampling
        self._counts_tokens = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._repeats = sampling.repetition_penalty != 1.0
        self._min_tokens = min_tokens
        self._banned: dict[int, float] = {}
        """Tokens that are banned until the minimum length, and their bias after that."""
        self._generated = 0
        self._columns: dict[int, int] = {}
        self._tokens = np.zeros(_SPARE, np.int32)
        self._counts = np.zeros(_SPARE, np.int64)
        self._values = np.zeros((4, _SPARE), np.float32)
        for each in sampling.logit_bias:
            column = self._column(each.token)  # may move the values
            self._values[_BIAS, column] = each.bias
        for token in eos if min_tokens else ():
            column = self._column(token)
            self._banned[token] = float(self._values[_BIAS, column])
            self._values[_BIAS, column] = -math.inf
        if self._repeats:
            for token in dict.fromkeys(prompt):
                self._repeat(self._column(token))

    def accept(self, token: int) -> None:
        """Count a generated token."""
        self._generated += 1
        if self._generated == self._min_tokens:
            for banned, bias in self._banned.items():
                self._values[_BIAS, self._columns[banned]] = bias
        if not (self._counts_tokens or self._repeats):
            return
        column = self._column(token)
        if self._repeats:
            self._repeat(column)
        if self._counts_tokens:
            self._counts[column] += 1
            sampling = self._sampling
            times = int(self._counts[column])
            self._values[_MINUS, column] = sampling.frequency_penalty * times + sampling.presence_penalty

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that returns to the present state."""
        generated, count = self._generated, len(self._columns)
        counts, values = self._counts[:count].copy(), self._values[:, :count].copy()

        def restore() -> None:
            self._generated = generated
            now = len(self._columns)
            for token in self._tokens[count:now].tolist():
                del self._columns[token]
            self._counts[:count], self._values[:, :count] = counts, values
            self._counts[count:now], self._values[:, count:now] = 0, 0.0

        return restore

    @property
    def banned(self) -> Collection[int]:
        """Tokens that may not be sampled yet."""
        return self._banned if self._generated < self._min_tokens else ()

    def edits(self, banned: Collection[int] = (), penalties: Mapping[int, float] = _NONE) -> LogitEdits | None:
        """Return the current edits; None if there are none.

        Of this position alone are `banned` tokens, and `penalties`, which are subtracted in addition.
        """
        columns, count = self._columns, len(self._columns)
        others = dict.fromkeys((*banned, *penalties))
        at = {token: columns[token] for token in others if token in columns}
        new = [token for token in others if token not in at]
        at.update((token, count + index) for index, token in enumerate(new))
        if not count and not new:
            return None
        values = np.zeros((4, count + len(new)), np.float32)
        values[:, :count] = self._values[:, :count]
        values[(_UP, _DOWN), count:] = 1.0
        values[_BIAS, [at[token] for token in banned]] = -math.inf
        values[_MINUS, [at[token] for token in penalties]] += np.array(list(penalties.values()), np.float32)
        return LogitEdits(np.concatenate([self._tokens[:count], np.array(new, np.int32)]), *values)

    def _repeat(self, column: int) -> None:
        """Set the repetition penalty. The device multiplies rather than divides, because products round identically
        everywhere."""
        self._values[_UP, column] = 1.0 / self._sampling.repetition_penalty
        self._values[_DOWN, column] = self._sampling.repetition_penalty

    def _column(self, token: int) -> int:
        """Return the token's column; a new one has no effect."""
        column = self._columns.get(token)
        if column is None:
            column = self._columns[token] = len(self._columns)
            if column == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
                self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
            self._tokens[column] = token
            self._values[(_UP, _DOWN), column] = 1.0
        return column


class LogitsProcessors:
    """All logits processors of one sequence; owned by the scheduler, and new each time a sequence starts or resumes."""

    def __init__(
        self,
        penalties: Penalties | None,
        constraint: Constraint | None,
        sequences: BannedSequences | None = None,
        dry: DryPenalty | None = None,
    ) -> None:
        """All have the resumed tokens already. `penalties` is not None if `sequences` or `dry` is not."""
        self._penalties = penalties
        self._constraint = constraint
        self._sequences = sequences
        self._dry = dry
        self._mask: NDArray[np.uint32] | None = None
        self.late_end: Exception | Literal["stop"] | None = None
        """Why the answer ends, if only its late mask has shown it: the token that was sampled is not part of it."""

    @classmethod
    def of(cls, request: EngineRequest) -> Self | None:
        """Return the processors at the first new token of a request, whose constraint has accepted the resumed ones;
        None if it needs none."""
        sampling = request.sampling
        sparse = (
            sampling.logit_bias
            or sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.repetition_penalty != 1.0
            or sampling.dry_multiplier
            or request.bad_sequences
            or (request.min_tokens and request.eos)
        )
        if not sparse and request.constraint is None:
            return None
        penalties = Penalties(sampling, request.prompt_tokens, request.min_tokens, request.eos) if sparse else None
        sequences = BannedSequences(request.bad_sequences) if request.bad_sequences else None
        for token in request.resume:
            for each in (penalties, sequences):
                if each is not None:
                    each.accept(token)
        tokens = (*request.prompt_tokens, *request.resume)  # taken at once, which costs less than one after the other
        dry = DryPenalty(sampling, tokens, request.breakers) if sampling.dry_multiplier else None
        return cls(penalties, request.constraint, sequences, dry)

    @property
    def ended(self) -> bool:
        """Like `exhausted`, but does not compute the mask if the constraint knows without it."""
        known = self._known_end()
        return self.exhausted if known is None else known

    @property
    def exhausted(self) -> bool:
        """No token may follow: the constraint is at its end, or allows only tokens that are banned."""
        mask = self._allowed()
        if mask is None:
            return False
        if banned := self._banned():
            mask = mask.copy()
            for token in banned:
                mask[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token % 32))
        return not mask.any()

    def accept(self, token: int) -> None:
        """Append a token to the sequence. Raises `ConstraintFailed`, as do `ended` and `exhausted`."""
        if self._penalties is not None:
            self._penalties.accept(token)
        if self._sequences is not None:
            self._sequences.accept(token)
        if self._dry is not None:
            self._dry.accept(token)
        if self._constraint is not None:
            self._constraint.accept(token)
            self._mask = None

    def sample_spec(self, sampling: Sampling, position: int) -> SampleSpec:
        """Return how to sample the next token. At least one token must be allowed.

        The mask is a late one if it is not computed yet and the constraint knows that it allows a token, and once more
        if a draft that was sampled by it has shown the end.
        """
        if self.late_end is not None or self._known_end() is False:
            return SampleSpec(sampling, position, self._edits(), None, self._late_mask)
        return SampleSpec(sampling, position, self._edits(), self._allowed())

    def draft_specs(self, sampling: Sampling, position: int, draft: Sequence[int]) -> list[SampleSpec]:
        """Return how to sample after each of some drafted tokens, the first one of which would be at `position`, as far
        as an answer may continue with them. The state is as before."""
        trial = self.trial()
        if trial is None:
            return []
        specs: list[SampleSpec] = []
        processors, restore = trial
        try:
            for number, token in enumerate(draft, 1):
                processors.accept(token)
                if processors.exhausted:
                    break
                specs.append(processors.draft_spec(sampling, position + number))
        except ConstraintFailed:  # if the answer gets there, it fails then
            pass
        finally:
            restore()
        return specs

    def trial(self) -> tuple[Self, Callable[[], None]] | None:
        """Return processors to which drafted tokens are appended, and a function that returns to the present state,
        before which this object cannot be used. None where the constraint cannot be copied."""
        fork = None if self._constraint is None else self._constraint.fork()
        if self._constraint is not None and fork is None:
            return None
        restore = self._checkpoint()
        return type(self)(self._penalties, fork, self._sequences, self._dry), restore

    def draft_spec(self, sampling: Sampling, position: int) -> SampleSpec:
        """Return how to sample after a drafted token. It has no late mask, which would be computed after the last
        one."""
        return SampleSpec(sampling, position, self._edits(), self._allowed())

    def forced(self) -> Sequence[int]:
        """Return tokens that must come next by the constraint, as far as it knows any."""
        return () if self._constraint is None else self._constraint.forced()

    def copied_constraint(self) -> Constraint | None:
        """Return a copy of the constraint, if there is one that can be copied."""
        return None if self._constraint is None else self._constraint.fork()

    def _checkpoint(self) -> Callable[[], None]:
        """Return a function that returns to the present state, but for the constraint."""
        parts = [each.checkpoint() for each in (self._penalties, self._sequences, self._dry) if each is not None]

        def restore() -> None:
            for each in parts:
                each()

        return restore

    def _known_end(self) -> bool | None:
        """Return what the constraint knows of its end without the mask, unless that is computed or is not all."""
        if self._constraint is None or self._mask is not None or self._banned():
            return None
        return self._constraint.ended

    def _late_mask(self) -> NDArray[np.uint32] | None:
        try:
            if self.exhausted:
                self.late_end = "stop"
        except Exception as error:  # noqa: BLE001 - must end this sequence only; the engine reports it
            self.late_end = error
        return self._mask if self.late_end is None else None

    def _edits(self) -> LogitEdits | None:
        if self._penalties is None:
            return None
        banned = () if self._sequences is None else self._sequences.banned()
        return self._penalties.edits(banned, _NONE if self._dry is None else self._dry.penalties())

    def _banned(self) -> Collection[int]:
        """Tokens that may not be sampled at this position, beside those that the constraint excludes."""
        early = () if self._penalties is None else self._penalties.banned
        return early if self._sequences is None else {*early, *self._sequences.banned()}

    def _allowed(self) -> NDArray[np.uint32] | None:
        if self._mask is None and self._constraint is not None:
            self._mask = self._constraint.mask()
        return self._mask
