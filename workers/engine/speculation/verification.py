"""Compares the tokens that a step has sampled with its drafts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.engine.sequence import EngineSequence
from workers.engine.speculation.speculator import Draft


@dataclass(frozen=True, slots=True)
class VerifiedRows:
    """The tokens that a sequence gets from its rows of a decode step."""

    sequence: EngineSequence
    draft: Draft
    first_row: int
    """The index of its first row in the step."""
    tokens: Sequence[int | None]
    """The accepted tokens of the draft, and the one that was sampled after them. A single None without a draft and with
    non-finite logits; nothing if any row of a draft has them: the rows before may be corrupted by its KV."""


def verify(
    decoding: Sequence[EngineSequence], drafts: Sequence[Draft], sampled: Sequence[int | None]
) -> list[VerifiedRows]:
    """Return what each sequence gets from the sampled tokens of all rows, those of one sequence after the other's.

    Raises `RuntimeError` if the runner has returned another number of tokens.
    """
    rows = sum(1 + len(draft.tokens) for draft in drafts)
    if len(sampled) != rows:
        raise RuntimeError(f"the runner returned {len(sampled)} tokens for {rows} rows")
    verified, first = [], 0
    for sequence, draft in zip(decoding, drafts, strict=True):
        mine = sampled[first : first + 1 + len(draft.tokens)]
        tokens = () if draft.tokens and None in mine else mine[: draft.accepted(mine) + 1]
        verified.append(VerifiedRows(sequence, draft, first, tokens))
        first += len(mine)
    return verified
