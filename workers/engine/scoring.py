"""Log-likelihood of given tokens, for scoring a text that the model did not generate."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.engine.chunking import chunk_lengths
from workers.engine.runner import Chunk, Runner


def score(runner: Runner, slot: int, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Return the natural log of the probability of tokens[1:], each given those before it: float64 [len(tokens) - 1].

    The log-softmax is computed on the host in float64 from the runner's float32 logits. Uses the cache of `slot`, which
    must be fresh; the caller resets it. Raises what the runner raises.
    """
    values = np.empty(max(len(tokens) - 1, 0), np.float64)
    start = 0
    for length in chunk_lengths(len(values), runner.capabilities.prefill_chunks):
        logits = runner.logits(Chunk(slot, tuple(tokens[start : start + length]), start, start))
        for row in range(length):
            # One row at a time: a chunk of a large vocabulary in float64 would take most of a gigabyte.
            values[start + row] = _log_softmax(logits[row], tokens[start + row + 1])
        start += length
    return values


def _log_softmax(logits: NDArray[np.float32], token: int) -> float:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum()))
