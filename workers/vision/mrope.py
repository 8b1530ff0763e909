"""Positions of tokens on three axes, time, row and column, for language models with M-RoPE.

After `get_rope_index` of transformers' Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5, for images: a text counts equally on
all three axes; the tokens of an image have the same time, and the text behind it continues after its longer side.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.vision.patches import ImagePatches


def axes_of(tokens: Sequence[int], parts: Sequence[tuple[int, ImagePatches]]) -> tuple[NDArray[np.int32], int]:
    """Return the positions of a prompt's tokens, int32 [3, tokens], and the position of the first token of the answer.

    `parts` has the index of the first row of each image in the prompt and its patches, in rising order. Raises
    `ValueError` for parts that overlap or end behind the prompt.
    """
    axes = np.empty((3, len(tokens)), np.int32)
    at = position = 0
    for first, patches in parts:
        if first < at or first + patches.count > len(tokens):
            raise ValueError(f"the image at token {first} overlaps another one or the end of the prompt")
        axes[:, at:first] = np.arange(position, position + first - at)
        position += first - at
        rows, columns = patches.tokens
        at = first + patches.count
        axes[0, first:at] = position
        axes[1, first:at] = position + np.repeat(np.arange(rows), columns)
        axes[2, first:at] = position + np.tile(np.arange(columns), rows)
        position += max(rows, columns)
    axes[:, at:] = np.arange(position, position + len(tokens) - at)
    return axes, position + len(tokens) - at
