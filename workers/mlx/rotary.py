"""Rotary position embeddings in MLX, from the frequencies that both backends share."""

import mlx.core as mx
import numpy as np

from workers.checkpoints.architectures.rope import Rope


class Rotary:
    """The `rope` of an mlx-lm layer. It replaces mlx-lm's own, which differ between its model files."""

    def __init__(self, rope: Rope, context: int, *, interleaved: bool = False) -> None:
        """`interleaved` rotates pairs of neighbouring lanes."""
        frequencies, self._factor = rope.frequencies(context)
        self._dims = rope.dims
        self._interleaved = interleaved
        # A pair that does not rotate has an infinite period.
        self._periods = mx.array(
            np.divide(1, frequencies, out=np.full_like(frequencies, np.inf), where=frequencies > 0)
        )

    def __call__(self, x: mx.array, offset: mx.array | int = 0) -> mx.array:
        """Rotate x, [rows, heads, tokens, head_dim]; `offset` is the first token's position, of all rows or of each."""
        if self._factor != 1:
            x = x.at[..., : self._dims].multiply(self._factor)
        return mx.fast.rope(
            x, self._dims, traditional=self._interleaved, base=None, scale=1.0, offset=offset, freqs=self._periods
        )


def no_positions(x: mx.array, offset: mx.array | int = 0) -> mx.array:
    """The `rope` of a layer without positions."""
    return x
