"""The drafts of one sequence: what drafts its tokens, and how often they were accepted. Pure."""

from collections.abc import Sequence

from workers.engine.speculation.acceptance import Acceptance
from workers.engine.speculation.drafter import Drafter

UNVERIFIED = 4
"""Tokens of a draft that is not verified, which are compared with those that the sequence gets."""


class SequenceDrafts:
    """Owns the drafters of a sequence, and what is measured of them.

    A draft that is not worth its rows is compared with the tokens that the sequence gets without it: so drafts begin to
    be verified when they would have been accepted, at no cost.
    """

    def __init__(self, tokens: list[int], drafters: Sequence[Drafter], rates: dict[str, Acceptance]) -> None:
        """`tokens` are those of the sequence. The first of the `drafters` that has a draft is used. `rates` are those
        of all sequences by the name of the drafter's class, with which new ones begin."""
        self._tokens = tokens
        self._drafters = [(each, Acceptance(rates.setdefault(type(each).__name__, Acceptance()))) for each in drafters]
        self._acceptance = Acceptance()
        """That of the last draft's drafter."""
        self._unverified: Sequence[int] = ()
        """A draft that is compared, which began at this length of the sequence:"""
        self._began = 0
        self.off = False
        """Nothing is drafted any more, because a draft has failed."""
        self.drafted = 0
        """Tokens that were verified, of which so many were accepted:"""
        self.accepted = 0

    @property
    def rate(self) -> float:
        """The rate at which the tokens of the last draft may be accepted."""
        return self._acceptance.rate

    def draft(self, most: int) -> Sequence[int]:
        """Return a draft of up to `most` tokens; none while another one is compared."""
        if self.off or most < 1 or self._compares():
            return ()
        for drafter, acceptance in self._drafters:
            if draft := drafter.draft(most):
                self._acceptance = acceptance
                return draft
        return ()

    def not_verified(self, draft: Sequence[int]) -> None:
        """Note that the last draft is not verified in this step."""
        self._unverified, self._began = draft[:UNVERIFIED], len(self._tokens)

    def verified(self, drafted: int, accepted: int) -> None:
        """Record the last draft, of which so many tokens were verified."""
        self.drafted += drafted
        self.accepted += accepted
        self._acceptance.record(drafted, accepted)

    def _compares(self) -> bool:
        """Compare the draft that is not verified with the tokens since then. True if there are more to come."""
        if not self._unverified:
            return False
        got = self._tokens[self._began : self._began + len(self._unverified)]
        same = next((at for at, token in enumerate(got) if token != self._unverified[at]), len(got))
        if same == len(got) < len(self._unverified):
            return True
        self._acceptance.record(len(self._unverified), same)
        self._unverified = ()
        return False
