"""Chooses the tokens of a prompt that are computed, by their scores. Pure.

As in SpecPrefill (https://arxiv.org/abs/2502.02789): whole chunks of the prompt, those with the highest mean score.
What that method may leave out and answers break without is kept in any case (see `forced_ranges`).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.engine.sparse.kept_rows import Ranges, joined

CHUNK = 32
"""Tokens that are kept or left out together."""
TAIL_CHUNKS = 2
"""Chunks at the end of a prompt that are always kept."""
TURN_TOKENS = 256
"""The last tokens of the last turn of the user that are always kept; a shorter one is kept whole."""


def forced_ranges(prompt: int, head: int = 0, turn: int | None = None) -> Ranges:
    """Return the parts of a prompt that are kept whatever their scores: its first chunk, which attention leans on, its
    first `head` tokens, its end, and the last turn of the user from `turn` on, or the end of a long one."""
    tail = max(0, prompt - TAIL_CHUNKS * CHUNK)
    if turn is not None:
        tail = min(tail, max(turn, prompt - TURN_TOKENS))
    first = min(prompt, max(CHUNK, head))
    return joined([(0, first), (max(0, tail), prompt)])


def kept_chunks(prompt: int, keep: float) -> int:
    """Return how many chunks of a prompt are kept, unless those that are always kept are more."""
    return math.ceil(keep * math.ceil(prompt / CHUNK))


def keeps_all(prompt: int, keep: float, forced: Ranges) -> bool:
    """Return whether nothing of a prompt would be left out."""
    chunks = math.ceil(prompt / CHUNK)
    return max(kept_chunks(prompt, keep), len(_forced_chunks(forced))) >= chunks


def choose(scores: NDArray[np.float32], keep: float, forced: Ranges) -> Ranges:
    """Return the ranges of a prompt that are kept, by the score of each of its tokens: float32 [prompt]. Of equal
    chunks the first ones."""
    prompt = len(scores)
    starts = np.arange(0, prompt, CHUNK)
    sizes = np.minimum(CHUNK, prompt - starts)
    means = np.add.reduceat(scores, starts) / sizes
    chosen = _forced_chunks(forced)
    for chunk in np.argsort(-means, kind="stable").tolist():
        if len(chosen) >= kept_chunks(prompt, keep):
            break
        chosen.add(chunk)
    return joined([(chunk * CHUNK, min(prompt, (chunk + 1) * CHUNK)) for chunk in sorted(chosen)])


def _forced_chunks(forced: Sequence[tuple[int, int]]) -> set[int]:
    return {chunk for start, end in forced for chunk in range(start // CHUNK, -(-end // CHUNK))}
