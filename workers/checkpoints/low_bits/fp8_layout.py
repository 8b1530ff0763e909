"""FP8 weights (E4M3) with a scale for the matrix, for each output, or for each block of weights."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.low_bits.codes import check_finite, from_e4m3, from_e8m0
from workers.checkpoints.low_bits.layout import SCALE_TYPES, LowBitLayout, Parts, Shape, pair


@dataclass(frozen=True)
class Fp8Layout(LowBitLayout):
    """FP8 as DeepSeek and Qwen have it (`weight_scale_inv`, a factor in spite of its name, for blocks), as
    compressed-tensors and ModelOpt have it (`weight_scale`)."""

    block: Shape | None = None
    """Outputs and inputs that share a scale; None for the whole matrix or one output."""
    scale: str = "weight_scale"

    name = "fp8"
    codes = ".weight"
    code_types = ("F8_E4M3",)

    @property
    def required(self) -> dict[str, tuple[str, ...]]:
        return {f".{self.scale}": (*SCALE_TYPES, "F8_E8M0")}

    def shape(self, codes: tuple[int, ...], parts: Parts) -> Shape:
        return pair(codes)

    def values(self, parts: Parts, shape: Shape, low: int, high: int) -> NDArray[np.float32]:
        stored = parts[f".{self.scale}"]
        scales = from_e8m0(stored) if stored.dtype == np.uint8 else check_finite(stored)
        return from_e4m3(parts[self.codes][low:high]) * self._expand(scales, shape, low, high)

    def _expand(self, scales: NDArray[np.float32], shape: Shape, low: int, high: int) -> NDArray[np.float32]:
        """Return the scales of the outputs from `low` to `high`, which numpy multiplies with them."""
        outputs, inputs = shape
        if self.block is not None:
            expected = tuple(-(-size // block) for size, block in zip(shape, self.block, strict=True))
            if scales.shape == expected:
                rows = scales[np.arange(low, high) // self.block[0]]
                return np.repeat(rows, self.block[1], axis=1)[:, :inputs]
            raise ValueError(f"{self.scale} has the shape {scales.shape}, not {expected} of blocks of {self.block}")
        if scales.size == 1:
            return scales.reshape(1, 1)
        if scales.shape in ((outputs,), (outputs, 1)):
            return scales.reshape(outputs, 1)[low:high]
        raise ValueError(f"{self.scale} has the shape {scales.shape}, neither one value nor {(outputs, 1)}")
