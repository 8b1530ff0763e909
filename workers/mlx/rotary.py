"""Rotary position embeddings in MLX, from the frequencies that both backends share."""

from collections.abc import Sequence

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

        self._axes: mx.array | None = None

    def divide(self, axes: Sequence[int]) -> None:
        """Give each angle one of several axes of positions, as M-RoPE does (https://arxiv.org/abs/2409.12191)."""
        if len(axes) != self._dims // 2:
            raise ValueError(f"axes: {len(axes)} for {self._dims // 2} angles")
        self._axes = mx.array(np.repeat(axes, 2) if self._interleaved else np.tile(axes, 2))

    def __call__(self, x: mx.array, offset: mx.array | int = 0) -> mx.array:
        """Rotate x, [rows, heads, tokens, head_dim]; `offset` is the first token's position, of all rows or of each, or
        the positions of each row in all axes, [axes, rows].

        A row whose positions are the same in all axes has the bits that it has with one.
        """
        if not isinstance(offset, mx.array) or offset.ndim < 2:
            return self._rotate(x, offset)
        if self._axes is None:
            raise ValueError("axes: the model has positions in one axis")
        rotated = self._rotate(x, offset[0])
        lanes = mx.pad(self._axes, (0, x.shape[-1] - self._dims))  # the lanes behind them are the same in all
        for axis in range(1, offset.shape[0]):
            rotated = mx.where(lanes == axis, self._rotate(x, offset[axis]), rotated)
        return rotated

    def _rotate(self, x: mx.array, offset: mx.array | int) -> mx.array:
        if self._factor != 1:
            x = x.at[..., : self._dims].multiply(self._factor)
        return mx.fast.rope(
            x, self._dims, traditional=self._interleaved, base=None, scale=1.0, offset=offset, freqs=self._periods
        )


def axes_of_angles(sections: Sequence[int], *, interleaved: bool) -> list[int]:
    """Return the axis of each angle, of `VisionConfig.mrope` and `mrope_interleaved`: 0 is time, 1 the row, 2 the
    column."""
    if not interleaved:
        return [axis for axis, count in enumerate(sections) for _ in range(count)]
    axes = [0] * sum(sections)
    for axis, count in enumerate(sections[1:], 1):
        for angle in range(axis, 3 * count, 3):
            axes[angle] = axis
    return axes


def no_positions(x: mx.array, offset: mx.array | int = 0) -> mx.array:
    """The `rope` of a layer without positions."""
    return x
