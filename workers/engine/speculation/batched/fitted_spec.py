"""Fits how a token is sampled to a vocabulary of another size: checkpoints pad the same one differently. Pure."""

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from workers.sampling.sample_spec import LogitEdits, SampleSpec


def fitted(spec: SampleSpec, vocab_size: int) -> SampleSpec:
    """Return how a model of `vocab_size` tokens samples where the target samples by `spec`: without the edits of other
    tokens, and without a mask that allows none of its own."""
    mask = spec.mask if spec.late_mask is None else spec.late_mask()
    edits = spec.edits
    if edits is not None and (edits.tokens >= vocab_size).any():
        edits = _kept(edits, edits.tokens < vocab_size)
    if mask is not None:
        mask = _resized(mask, vocab_size)
    return replace(spec, edits=edits, mask=mask, late_mask=None)


def _kept(edits: LogitEdits, those: NDArray[np.bool_]) -> LogitEdits:
    values = (edits.bias[those], edits.up[those], edits.down[those], edits.minus[those])
    return LogitEdits(edits.tokens[those], *values)


def _resized(mask: NDArray[np.uint32], vocab_size: int) -> NDArray[np.uint32] | None:
    words = -(-vocab_size // 32)
    if words == len(mask) and not vocab_size % 32:
        return mask
    out = np.zeros(words, np.uint32)
    out[: min(words, len(mask))] = mask[:words]
    if rest := vocab_size % 32:
        out[-1] &= np.uint32((1 << rest) - 1)
    return out if out.any() else None
