"""DRY ("don't repeat yourself"): penalizes tokens that would continue a repetition of earlier tokens.

By p-e-w, github.com/oobabooga/text-generation-webui/pull/5677, with the range and the breakers of llama.cpp
(`llama_sampler_dry`). If the last n tokens occurred before, the token that followed them there is penalized by
multiplier * base ** (n - allowed_length), where n is at least `allowed_length`; the longest repetition counts for each
token. Prompt and answer count. A repetition does not extend over a breaker, nor beyond the range.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from protocol.request import Sampling

MAX_MATCH = 256
"""Tokens of a repetition that count."""
MAX_PENALTY = 1e18
"""Upper bound of a penalty: the logits stay finite, so that a token that alone is allowed can be sampled."""
_SPARE = 256


class Breakers(Struct, frozen=True, gc=False):
    """Tokens over which a repetition does not extend."""

    tokens: bytes = b""
    """1 at the index of each token that is a breaker by itself."""
    sequences: tuple[tuple[int, ...], ...] = ()
    """Breakers of several tokens."""


NO_BREAKERS = Breakers()


class DryPenalty:
    """The penalties of one sequence. Owns a copy of its tokens.

    A step takes a few passes over the tokens of the range. The state depends on the tokens alone, not on how many of
    them were there at the start.
    """

    def __init__(self, sampling: Sampling, tokens: Sequence[int], breakers: Breakers) -> None:
        """`tokens` are those before the first token to be sampled."""
        self._allowed = sampling.dry_allowed_length
        self._range = sampling.dry_range
        self._penalties = _penalties(sampling)
        self._singles = np.frombuffer(breakers.tokens, np.bool_)
        self._sequences = breakers.sequences
        self._count = len(tokens)
        self._tokens = np.zeros(self._count + _SPARE, np.int32)
        self._tokens[: self._count] = tokens
        self._free = self._since_breaker()
        self._ends, self._lengths = self._search()
        self._matched = np.zeros(len(self._tokens), np.int64)
        """The lengths by their places, 0 elsewhere."""
        self._matched[self._ends] = self._lengths

    def accept(self, token: int) -> None:
        """Append a token."""
        if self._count == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
            self._matched = np.concatenate([self._matched, np.zeros_like(self._matched)])
        self._tokens[self._count] = token
        self._count += 1
        self._free = 0 if self._ends_with_breaker(self._count) else self._free + 1
        self._extend(token)

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that returns to the present state."""
        count, free, ends, lengths = self._count, self._free, self._ends, self._lengths

        def restore() -> None:
            self._matched[self._ends] = 0
            self._matched[ends] = lengths
            self._count, self._free, self._ends, self._lengths = count, free, ends, lengths

        return restore

    def penalties(self) -> Mapping[int, float]:
        """Return what is subtracted from the logits of tokens; others are not penalized."""
        if self._free < self._allowed or not len(self._ends):
            return {}
        first = self._first()
        # Neither the repetition nor the tokens that it repeats begin before the range.
        lengths = np.minimum(self._lengths, np.minimum(self._ends + 1 - first, self._free))
        long = lengths >= self._allowed
        followers, which = np.unique(self._tokens[self._ends[long] + 1], return_inverse=True)
        longest = np.zeros(len(followers), np.int64)
        np.maximum.at(longest, which, lengths[long])
        over = longest - self._allowed
        return {token: self._penalties[count] for token, count in zip(followers.tolist(), over.tolist(), strict=True)}

    def _first(self) -> int:
        """Return the place of the first token of the range."""
        return max(0, self._count - self._range) if self._range else 0

    def _search(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the places of the last token before the end, and how many tokens up to each equal the last ones."""
        tokens = self._tokens[: self._count]
        ends = np.flatnonzero(tokens[:-1] == tokens[-1:])
        lengths = np.full(len(ends), MAX_MATCH)
        left, at = np.arange(len(ends)), ends
        for length in range(1, min(MAX_MATCH, self._count)):
            at = at - 1
            same = (at >= 0) & (tokens[at] == tokens[-1 - length])
            if not same.all():
                lengths[left[~same]] = length
                left, at = left[same], at[same]
            if not len(left):
                break
        return ends, lengths

    def _extend(self, token: int) -> None:
        """Update the places and lengths for the last token: what matched before it is longer by one."""
        first = self._first()
        ends = np.flatnonzero(self._tokens[first : self._count - 1] == token) + first
        lengths = np.minimum(self._matched[ends - 1] + 1, MAX_MATCH)  # before the first token nothing matched
        self._matched[self._ends] = 0
        self._matched[ends] = lengths
        self._ends, self._lengths = ends, lengths

    def _since_breaker(self) -> int:
        """Return the number of tokens after the last breaker."""
        tokens = self._tokens[: self._count]
        if len(self._singles):
            known = tokens < len(self._singles)
            singles = np.flatnonzero(known & self._singles[np.where(known, tokens, 0)])
            last = int(singles[-1]) + 1 if len(singles) else 0
        else:
            last = 0
        for sequence in self._sequences:
            size = len(sequence)
            ends = np.flatnonzero(tokens[size - 1 :] == sequence[-1]) + size
            for end in reversed(ends[ends > last].tolist()):
                if tuple(tokens[end - size : end].tolist()) == sequence:
                    last = end
                    break
        return self._count - last

    def _ends_with_breaker(self, end: int) -> bool:
        token = int(self._tokens[end - 1])
        if token < len(self._singles) and self._singles[token]:
            return True
        return any(
            sequence[-1] == token
            and len(sequence) <= end
            and tuple(self._tokens[end - len(sequence) : end].tolist()) == sequence
            for sequence in self._sequences
        )


def _penalties(sampling: Sampling) -> list[float]:
    """Return the penalties by the tokens of a repetition over the allowed length. Products, unlike powers, are rounded
    identically everywhere."""
    penalties, penalty = [], sampling.dry_multiplier
    for _ in range(MAX_MATCH):
        penalties.append(penalty)
        penalty = min(penalty * sampling.dry_base, MAX_PENALTY)
    return penalties
