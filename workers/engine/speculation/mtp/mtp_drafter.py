"""Drafts with the head for multi-token prediction of the model itself."""

from collections.abc import Sequence

from workers.engine.runner import DecodeRow, DraftHead
from workers.engine.sequence import EngineSequence
from workers.engine.speculation.batched.open_draft import OpenDraft

MAX_TOKENS = 3
"""Tokens of a draft: the head is trained for the first one, and the further ones are drafted from its own state."""
RELATIVE_COST = 0.15
"""Assumed cost of drafting a token relative to a step: a layer and the matrix of the logits."""


class MtpDrafter:
    """Implements `BatchDrafter`. The head follows the runner by itself, so that nothing is ever missing."""

    def __init__(self, head: DraftHead) -> None:
        """`head` is that of the runner in which the sequences have their slots."""
        self._head = head

    def follow(self, decoding: Sequence[EngineSequence]) -> None:
        """See `BatchDrafter.follow`."""

    def room(self, sequence: EngineSequence) -> int:
        """See `BatchDrafter.room`. None while the hidden state before the last token is unknown."""
        return MAX_TOKENS if self._head.ready(sequence.slot, sequence.cached.rows) else 0

    def missing(self, sequence: EngineSequence) -> int:
        """See `BatchDrafter.missing`."""
        return 0

    def prepare(self, sequences: Sequence[EngineSequence], most: int) -> int:
        """See `BatchDrafter.prepare`."""
        return 0

    def draft(self, drafts: Sequence[OpenDraft]) -> None:
        """See `BatchDrafter.draft`. A draft ends where the logits of the head are not finite."""
        going = list(drafts)
        while going:
            tokens = self._head.draft([_row(draft) for draft in going])
            for draft, token in zip(going, tokens, strict=True):
                if token is not None:
                    draft.append(token)
            pairs = zip(going, tokens, strict=True)
            going = [draft for draft, token in pairs if token is not None and not draft.done]

    def settle(self) -> None:
        """See `BatchDrafter.settle`. The runner waits for the graphs of its head."""

    def close(self) -> None:
        """See `BatchDrafter.close`. The runner closes its head."""


def _row(draft: OpenDraft) -> DecodeRow:
    """Return the row that the model computes next, after the tokens of the draft."""
    sequence, at = draft.sequence, draft.sequence.cached.rows + len(draft.tokens)
    token = draft.tokens[-1] if draft.tokens else sequence.last_token
    return DecodeRow(sequence.slot, token, at, at, draft.spec)
