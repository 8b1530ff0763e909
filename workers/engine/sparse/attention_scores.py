"""Scores of the tokens of a prompt: how much later rows attend to them. Pure."""

import numpy as np
from numpy.typing import NDArray

POOL = 13
"""Tokens over which attention is averaged, those before and after included, as in SpecPrefill."""


def layer_scores(queries: NDArray[np.float32], keys: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the attention of rows to the tokens of a prompt in one layer, averaged over neighbours, and the most of
    all heads: float32 [rows, tokens].

    `queries` are float32 [rows, heads, lanes], scaled, and `keys` float32 [KV heads, tokens, lanes].
    """
    rows, heads, lanes = queries.shape
    kv_heads, tokens, _ = keys.shape
    most = np.zeros((rows, tokens), np.float32)
    for head in range(kv_heads):  # one at a time: the weights of all would be many megabytes
        group = slice(head * (heads // kv_heads), (head + 1) * (heads // kv_heads))
        asked = np.ascontiguousarray(queries[:, group]).reshape(-1, lanes)
        weights = asked @ keys[head].T
        weights -= weights.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=1, keepdims=True)
        pooled = _pooled(weights).reshape(rows, -1, tokens)
        np.maximum(most, pooled.max(axis=1), out=most)
    return most


def _pooled(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of `POOL` neighbours along the last axis, with zeros beyond the ends."""
    half, tokens = POOL // 2, weights.shape[-1]
    padded = np.pad(weights, ((0, 0), (half, half)))
    two = padded[:, :-1] + padded[:, 1:]
    four = two[:, :-2] + two[:, 2:]
    eight = four[:, :-4] + four[:, 4:]
    total = eight[:, :tokens] + four[:, 8 : 8 + tokens] + padded[:, 12 : 12 + tokens]
    return np.asarray(total * np.float32(1 / POOL), np.float32)
