"""The drafts of one sequence: what drafts its tokens, and how often they were accepted. Pure."""

import math
from collections.abc import Sequence

from workers.engine.speculation.acceptance import Acceptance
from workers.engine.speculation.drafter import Drafter

UNVERIFIED = 4
"""Tokens of a draft that is not verified, which are compared with those that the sequence gets."""
RECENT_TOKENS = 64.0
"""Tokens in which the weight of a token in `SequenceDrafts.recent_share` falls to 1/e."""
MAX_PAUSE = 64
"""The most tokens between two drafts of a drafter whose drafts are not verified."""


class _Source:
    """A drafter, the acceptance of its drafts, and the one that is compared."""

    def __init__(self, drafter: Drafter, others: Acceptance) -> None:
        self.drafter = drafter
        self.acceptance = Acceptance(others)
        self.next_at = 0
        """The length of the sequence at which it drafts next."""
        self._unverified: Sequence[int] = ()
        """A draft that is not verified, for the tokens before `next_at`."""
        self._pause = 1

    def compare_with(self, tokens: Sequence[int]) -> None:
        """Compare the draft that was not verified with what the sequence has got, if that is complete. After one of
        which nothing would have been accepted, the drafter pauses: twice as long each time."""
        if not self._unverified:
            return
        count, draft = len(self._unverified), self._unverified
        got = tokens[self.next_at - count : self.next_at]
        accepted = next((at for at, token in enumerate(got) if token != draft[at]), count)
        self.acceptance.record(count, accepted)
        self._unverified = ()
        self._pause = 1 if accepted else min(2 * self._pause, MAX_PAUSE)
        self.next_at = len(tokens) + self._pause - 1

    def not_verified(self, draft: Sequence[int], length: int) -> None:
        """Note that a draft at this length of the sequence is not verified."""
        self._unverified = draft[:UNVERIFIED]
        self.next_at = length + len(self._unverified)

    def verified(self, drafted: int, accepted: int) -> None:
        self.acceptance.record(drafted, accepted)
        self._pause = 1


class SequenceDrafts:
    """Owns the drafters of a sequence, and what is measured of them.

    A draft that is not worth its rows is compared with the tokens that the sequence gets without it: so drafts begin to
    be verified when they would have been accepted, at no cost.
    """

    def __init__(self, tokens: list[int], drafters: Sequence[Drafter], rates: dict[str, Acceptance]) -> None:
        """`tokens` are those of the sequence. Of several drafts that is used of which most is expected to be accepted.
        `rates` are those of all sequences by the name of the drafter's class, with which new ones begin."""
        self._tokens = tokens
        self._sources = [_Source(each, rates.setdefault(type(each).__name__, Acceptance())) for each in drafters]
        self._source = self._sources[0]
        """That of the last draft."""
        self._begun_at = self._counted_at = len(tokens)
        self._recent = 0.0
        """Accepted tokens before `_counted_at`, each by its weight then, relative to the weight of all tokens."""

    @property
    def recent_share(self) -> float:
        """The part of the last tokens that were drafted and accepted, within 0 and 1; 0 before any."""
        generated = len(self._tokens) - self._begun_at
        if generated <= 0 or not self._recent:
            return 0.0
        all_tokens = 1.0 - math.exp(-generated / RECENT_TOKENS)
        return min(1.0, self._recent_now() / all_tokens)

    @property
    def first(self) -> float:
        """The rate at which the first token of the last draft may be accepted."""
        return self._source.acceptance.first

    @property
    def rate(self) -> float:
        """The rate at which its further tokens may be accepted, each after those before it."""
        return self._source.acceptance.rate

    def draft(self, most: int) -> Sequence[int]:
        """Return a draft of up to `most` tokens."""
        length, best = len(self._tokens), 0.0
        chosen: Sequence[int] = ()
        for source in self._sources:
            if length < source.next_at:
                continue
            source.compare_with(self._tokens)
            if length < source.next_at or not (draft := source.drafter.draft(most)):
                continue
            if (expected := source.acceptance.expected(len(draft))) > best:
                self._source, best, chosen = source, expected, draft
        return chosen

    def not_verified(self, draft: Sequence[int]) -> None:
        """Note that the last draft is not verified in this step."""
        self._source.not_verified(draft, len(self._tokens))

    def forbidden(self) -> None:
        """Record that the constraint of the sequence does not allow the last draft. This tells nothing of others."""
        self._source.acceptance.learn(1, 0)

    def verified(self, drafted: int, accepted: int) -> None:
        """Record the last draft, of which so many tokens were verified."""
        self._recent = self._recent_now() + accepted / RECENT_TOKENS
        self._counted_at = len(self._tokens)
        self._source.verified(drafted, accepted)

    def _recent_now(self) -> float:
        return self._recent * math.exp((self._counted_at - len(self._tokens)) / RECENT_TOKENS)
