"""FP4 weights (E2M1) in groups that share a scale: MXFP4 and NVFP4."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.low_bits.codes import E2M1, check_finite, from_e4m3, from_e8m0, nibbles
from workers.checkpoints.low_bits.layout import LowBitLayout, Parts, Shape, fit, pair, single
from workers.checkpoints.quantized_matrix import FP4_MIDDLE, SCALE_TYPES, GroupFormat, Quantized, ScaleType

MX_GROUP, NV_GROUP = 32, 16
LEVELS = (2 * E2M1 + FP4_MIDDLE).astype(np.uint8)
"""The level of each code: twice its value, which is an integer."""


def fp4_format(group: int, scales: ScaleType) -> GroupFormat:
    """Return the format of FP4 with scales for so many weights."""
    return GroupFormat(4, group, "middle", scales, e2m1=True)


@dataclass(frozen=True)
class Mxfp4Layout(LowBitLayout):
    """MXFP4 of compressed-tensors: a power of two for 32 weights. Half of it is a number of bfloat16."""

    name = "mxfp4"
    codes = ".weight_packed"
    code_types = ("U8",)
    required = MappingProxyType({".weight_scale": ("U8", "F8_E8M0")})
    exact = True

    def shape(self, codes: tuple[int, ...], parts: Parts) -> Shape:
        return pair(codes, 2)

    def format(self, shape: Shape, scales: ScaleType) -> GroupFormat | None:
        return None if shape[1] % MX_GROUP else fp4_format(MX_GROUP, "bfloat16")

    def values(self, parts: Parts, shape: Shape, low: int, high: int) -> NDArray[np.float32]:
        scales = np.repeat(from_e8m0(self._scales(parts, shape)[low:high]), MX_GROUP, axis=1)
        return E2M1[nibbles(self._codes(parts, shape)[low:high])] * scales

    def quantized(self, parts: Parts, shape: Shape, format: GroupFormat) -> Quantized:
        scales = (from_e8m0(self._scales(parts, shape)) / np.float32(2)).astype(SCALE_TYPES[format.scales])
        return Quantized(format, LEVELS[nibbles(self._codes(parts, shape))], scales, None)

    def _codes(self, parts: Parts, shape: Shape) -> NDArray[np.uint8]:
        return parts[self.codes]

    def _scales(self, parts: Parts, shape: Shape) -> NDArray[np.uint8]:
        if shape[1] % MX_GROUP:
            raise ValueError(f"{shape[1]} inputs are not whole groups of {MX_GROUP}")
        scale = next(iter(self.required))
        return fit(parts[scale], (shape[0], shape[1] // MX_GROUP), scale[1:])


@dataclass(frozen=True)
class StackedMxfp4Layout(Mxfp4Layout):
    """MXFP4 of gpt-oss: stacks of all experts, with the 16 bytes of a group as the last axis."""

    codes = "_blocks"
    required = MappingProxyType({"_scales": ("U8",)})
    stacked = True

    def shape(self, codes: tuple[int, ...], parts: Parts) -> Shape:
        if len(codes) != 3 or codes[2] != MX_GROUP // 2:
            raise ValueError(f"has the shape {codes} of an expert, not [outputs, groups, {MX_GROUP // 2}]")
        return codes[0], codes[1] * MX_GROUP

    def _codes(self, parts: Parts, shape: Shape) -> NDArray[np.uint8]:
        return parts[self.codes].reshape(shape[0], shape[1] // 2)


@dataclass(frozen=True)
class Nvfp4Layout(LowBitLayout):
    """NVFP4: a scale in FP8 for 16 weights, and one in float32 for the matrix. Its scales are their products."""

    codes: str = ".weight_packed"
    whole: str = ".weight_global_scale"
    """Ending of the scale of the matrix."""
    divides: bool = True
    """That scale divides (compressed-tensors); else it is a factor (ModelOpt)."""

    name = "nvfp4"
    code_types = ("U8",)
    exact = True

    @property
    def required(self) -> Mapping[str, tuple[str, ...]]:
        return {".weight_scale": ("F8_E4M3",), self.whole: ("F32",)}

    def shape(self, codes: tuple[int, ...], parts: Parts) -> Shape:
        return pair(codes, 2)

    def format(self, shape: Shape, scales: ScaleType) -> GroupFormat | None:
        # MLX makes int8 of it, in groups of 32.
        return None if shape[1] % MX_GROUP else fp4_format(NV_GROUP, "float32")

    def values(self, parts: Parts, shape: Shape, low: int, high: int) -> NDArray[np.float32]:
        scales = np.repeat(self._scales(parts, shape)[low:high], NV_GROUP, axis=1)
        return E2M1[nibbles(parts[self.codes][low:high])] * scales

    def quantized(self, parts: Parts, shape: Shape, format: GroupFormat) -> Quantized:
        scales = self._scales(parts, shape) / np.float32(2)
        return Quantized(format, LEVELS[nibbles(parts[self.codes])], scales, None)

    def _scales(self, parts: Parts, shape: Shape) -> NDArray[np.float32]:
        outputs, inputs = shape
        if inputs % NV_GROUP:
            raise ValueError(f"{inputs} inputs are not whole groups of {NV_GROUP}")
        stored = fit(parts[".weight_scale"], (outputs, inputs // NV_GROUP), "weight_scale")
        whole = check_finite(single(parts[self.whole], self.whole[1:]))
        if self.divides and whole == 0:
            raise ValueError(f"{self.whole[1:]} is 0")
        groups = from_e4m3(stored)
        return groups / whole if self.divides else groups * whole
