"""What a sequence's own tokens change of its next logits: penalties, bias, a minimal length, and a constraint.

All of it follows from the request, its prompt and the tokens since, told one by one: nothing else may enter. So a
sequence that is resumed elsewhere, from its prompt and the tokens that were delivered, goes on as if it had never left.
"""

import math
from collections.abc import Collection, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from protocol.request import Sampling
from workers.engine.request import Constraint, EngineRequest
from workers.sampling.sample_spec import LogitEdits, SampleSpec

_SPARE = 64
_BIAS, _UP, _DOWN, _MINUS = range(4)


class AllowedTokens:
    """The constraint that allows the same tokens everywhere."""

    def __init__(self, tokens: Collection[int], vocab_size: int) -> None:
        """Raises `ValueError` when no token is allowed, or one that is not in the vocabulary."""
        if not tokens or min(tokens) < 0 or max(tokens) >= vocab_size:
            raise ValueError(f"tokens: none, or outside of a vocabulary of {vocab_size}")
        bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
        bits[list(tokens)] = 1
        self._words = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)

    def accept(self, token: int) -> None:
        """Changes nothing."""

    def mask(self) -> NDArray[np.uint32]:
        return self._words


class Penalties:
    """The sparse part: bias, penalties by counts, and end-of-sequence tokens that may not come yet.

    A column for each token that differs from the others. Semantics as in OpenAI's API (presence and frequency, over
    the generated tokens) and transformers (repetition, over the prompt as well), in vLLM's order: bias, repetition,
    then frequency and presence.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int], min_tokens: int, eos: Collection[int]) -> None:
        self._sampling = sampling
        self._counts_tokens = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._repeats = sampling.repetition_penalty != 1.0
        self._min_tokens = min_tokens
        self._banned = dict.fromkeys(eos, 0.0) if min_tokens else {}
        self._generated = 0
        self._columns: dict[int, int] = {}
        self._tokens = np.zeros(_SPARE, np.int32)
        self._counts = np.zeros(_SPARE, np.int64)
        self._values = np.zeros((4, _SPARE), np.float32)
        for each in sampling.logit_bias:
            column = self._column(each.token)  # may move the values
            self._values[_BIAS, column] = each.bias
        for token in self._banned:
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

    @property
    def banned(self) -> Collection[int]:
        """The tokens that may not come yet."""
        return self._banned if self._generated < self._min_tokens else ()

    def edits(self) -> LogitEdits | None:
        """As of now; None when no token differs."""
        count = len(self._columns)
        return LogitEdits(self._tokens[:count].copy(), *self._values[:, :count].copy()) if count else None

    def _repeat(self, column: int) -> None:
        """What divides a positive logit is a factor on the device: a product rounds alike everywhere."""
        self._values[_UP, column] = 1.0 / self._sampling.repetition_penalty
        self._values[_DOWN, column] = self._sampling.repetition_penalty

    def _column(self, token: int) -> int:
        """The token's column, a new one that changes nothing where it has none."""
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
    """All that one sequence's history does to its logits; owned by the scheduler, one for each life of a sequence."""

    def __init__(self, penalties: Penalties | None, constraint: Constraint | None) -> None:
        self._penalties = penalties
        self._constraint = constraint
        self._mask: NDArray[np.uint32] | None = None

    @classmethod
    def of(cls, request: EngineRequest) -> Self | None:
        """The state at the request's first new token: None for a request whose history changes nothing."""
        sampling = request.sampling
        sparse = (
            sampling.logit_bias
            or sampling.presence_penalty
            or sampling.frequency_penalty
            or sampling.repetition_penalty != 1.0
            or (request.min_tokens and request.eos)
        )
        if not sparse and request.constraint is None:
            return None
        penalties = Penalties(sampling, request.prompt, request.min_tokens, request.eos) if sparse else None
        processors = cls(penalties, None if request.constraint is None else request.constraint())
        for token in request.resume:
            processors.accept(token)
        return processors

    @property
    def exhausted(self) -> bool:
        """No token may follow: the constraint is at its end, or allows only what `min_tokens` rules out."""
        mask = self._allowed()
        if mask is None:
            return False
        banned = () if self._penalties is None else self._penalties.banned
        if banned:
            mask = mask.copy()
            for token in banned:
                mask[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token % 32))
        return not mask.any()

    def accept(self, token: int) -> None:
        """The sequence goes on with this token."""
        if self._penalties is not None:
            self._penalties.accept(token)
        if self._constraint is not None:
            self._constraint.accept(token)
            self._mask = None

    def sample_spec(self, sampling: Sampling, position: int) -> SampleSpec:
        """How to sample the next token; there must be one that may follow."""
        return SampleSpec(
            sampling, position, None if self._penalties is None else self._penalties.edits(), self._allowed()
        )

    def _allowed(self) -> NDArray[np.uint32] | None:
        if self._mask is None and self._constraint is not None:
            self._mask = self._constraint.mask()
        return self._mask
