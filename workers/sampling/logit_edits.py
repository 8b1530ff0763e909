"""Changes logits before sampling, on every backend: sparse edits, then a mask over the vocabulary.

Written against an array namespace `xp` like `workers.sampling.sample`, and bitwise identical on all backends: each
logit takes one sum, one product and one difference, which are kept apart so that a compiler cannot fuse them. The order
of edits and masks does not matter: a masked logit is -inf before and after an edit.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.sampling.noise import Array
from workers.sampling.sample_spec import LogitEdits, SampleSpec

ENTRIES = 512
"""Edits of a row in one call; a row with more takes several calls."""


class EditArrays(NamedTuple):
    """Edits of the rows of one call, in the order of `apply_edits`: [B, entries]."""

    tokens: NDArray[np.int32]
    bias: NDArray[np.float32]
    up: NDArray[np.float32]
    down: NDArray[np.float32]
    minus: NDArray[np.float32]


def edit_calls(specs: Sequence[SampleSpec], entries: int = ENTRIES) -> Iterator[EditArrays]:
    """Yield the arrays of each call that is needed to edit all rows: none if no row has edits."""
    each = [spec.edits for spec in specs]
    longest = max((len(edits.tokens) for edits in each if edits is not None), default=0)
    for start in range(0, longest, entries):
        yield _arrays(each, start, entries)


def _arrays(each: Sequence[LogitEdits | None], start: int, entries: int) -> EditArrays:
    shape = (len(each), entries)
    # Padding is a neutral edit, or repeats the row's first edit, so that each token still gets one value.
    arrays = EditArrays(np.zeros(shape, np.int32), *(np.full(shape, value, np.float32) for value in (0, 1, 1, 0)))
    for row, edits in enumerate(each):
        if edits is None or len(edits.tokens) <= start:
            continue
        parts = (edits.tokens, edits.bias, edits.up, edits.down, edits.minus)
        for target, source in zip(arrays, parts, strict=True):
            part = source[start : start + entries]
            target[row, : len(part)] = part
            target[row, len(part) :] = part[0]
    return arrays


def stack_masks(specs: Sequence[SampleSpec], vocab_size: int) -> NDArray[np.uint32] | None:
    """Return the masks of the rows, uint32 [B, ceil(vocab_size / 32)]; None if no row has one."""
    if all(spec.mask is None for spec in specs):
        return None
    words = allow_all(len(specs), vocab_size)
    for row, spec in enumerate(specs):
        if spec.mask is not None:
            words[row] = spec.mask
    return words


def allow_all(rows: int, vocab_size: int) -> NDArray[np.uint32]:
    """Return masks that allow every token."""
    return np.full((rows, -(-vocab_size // 32)), 0xFFFFFFFF, np.uint32)


def process_logits(xp: Any, logits: Array, specs: Sequence[SampleSpec]) -> Array:
    """Return the logits, float32 [B, V], after the edits and masks of their rows. For libraries that compute
    eagerly."""
    for arrays in edit_calls(specs):
        logits = apply_edits(xp, logits, *map(xp.array, arrays))
    words = stack_masks(specs, logits.shape[1])
    return logits if words is None else apply_mask(xp, logits, xp.array(words))


def apply_edits(xp: Any, logits: Array, tokens: Array, bias: Array, up: Array, down: Array, minus: Array) -> Array:
    """Return the logits, float32 [B, V], with `workers.sampling.sample_spec.LogitEdits` applied: [B, entries] each.

    A token that occurs twice in a row must have equal edits.
    """
    biased = xp.take_along_axis(logits, tokens, axis=1) + bias
    product = biased * xp.where(biased > 0.0, up, down)
    # A compiler could fuse the product and the difference after it into one operation, which rounds once. The exclusive
    # or with the tokens' signs prevents this: it is always with 0, which no compiler knows.
    product = (product.view(xp.uint32) ^ (tokens.view(xp.uint32) >> 31)).view(xp.float32)
    return _put(xp, logits, tokens, product - minus)


def apply_mask(xp: Any, logits: Array, words: Array) -> Array:
    """Return the logits, float32 [B, V], with -inf where the bit of the mask, uint32 [B, ceil(V / 32)], is 0."""
    places = xp.arange(32, dtype=xp.uint32)
    bits = (words[:, :, None] >> places[None, None, :]) & 1
    allowed = bits.reshape(words.shape[0], words.shape[1] * 32)[:, : logits.shape[1]]
    return xp.where(allowed != 0, logits, -math.inf).astype(xp.float32)


def _put(xp: Any, array: Array, indices: Array, values: Array) -> Array:
    """Return a copy of [B, V] with the values at the indices, [B, n] both."""
    if xp is np:
        out = array.copy()
        np.put_along_axis(out, indices, values, axis=1)
        return out
    in_place = {"inplace": False} if xp.__name__ == "jax.numpy" else {}
    return xp.put_along_axis(array, indices, values, axis=1, **in_place)
