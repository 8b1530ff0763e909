"""Matrices of MLX's modes with FP4 or FP8 weights and one byte for a scale: `mxfp4`, `nvfp4` and `mxfp8`.

https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.low_bits.codes import from_e4m3, from_e8m0
from workers.checkpoints.low_bits.fp4_layouts import LEVELS, MX_GROUP, NV_GROUP, fp4_format
from workers.checkpoints.low_bits.layout import GROUPS
from workers.checkpoints.quantized_matrix import SCALE_TYPES, GroupFormat, Quantized, quantize, unpack_words

MlxMode = Literal["affine", "mxfp4", "nvfp4", "mxfp8"]
MICROSCALED: Mapping[MlxMode, tuple[int, int]] = {
    "mxfp4": (MX_GROUP, 4),
    "nvfp4": (NV_GROUP, 4),
    "mxfp8": (MX_GROUP, 8),
}
"""(group_size, bits) of the modes with FP4 or FP8 weights. Scales are powers of two, in `nvfp4` FP8 (E4M3)."""


def microscaled_format(mode: MlxMode, inputs: int) -> GroupFormat:
    """Return the format in which the kernels for CPUs get a matrix: FP4 as it is, FP8 as int8."""
    if mode == "mxfp8":
        return GroupFormat(8, next(group for group in GROUPS if inputs % group == 0), "middle", "float32")
    return fp4_format(MX_GROUP, "bfloat16") if mode == "mxfp4" else fp4_format(NV_GROUP, "float32")


def from_microscaled(words: NDArray[Any], scales: NDArray[np.uint8], format: GroupFormat) -> Quantized:
    """Read a matrix: words [outputs, inputs * bits / 32], scales [outputs, groups]. Raises ValueError for codes of
    NaN and tensors that do not fit together."""
    if not format.e2m1:
        values = from_e4m3(unpack_words(words, 8))
        if scales.shape != (len(values), values.shape[1] // MX_GROUP):
            raise ValueError(f"scales of {scales.shape} do not fit {values.shape} weights")
        return quantize(values * np.repeat(from_e8m0(scales), MX_GROUP, axis=1), format)
    read = from_e8m0 if format.group == MX_GROUP else from_e4m3
    halves = (read(scales) / np.float32(2)).astype(SCALE_TYPES[format.scales])
    return Quantized(format, LEVELS[unpack_words(words, 4)], halves, None)
