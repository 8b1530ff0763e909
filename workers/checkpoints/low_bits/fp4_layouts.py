"""FP4 weights (E2M1) in groups that share a scale: MXFP4 and NVFP4."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.low_bits.codes import E2M1, check_finite, from_e4m3, from_e8m0, nibbles
from workers.checkpoints.low_bits.layout import LowBitLayout, Parts, Shape, fit, pair, single
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized, ScaleType

MX_GROUP, NV_GROUP = 32, 16
MX_BITS = 5
"""Bits of a level that is twice a value of FP4: -12 to 12."""


@dataclass(frozen=True)
class Mxfp4Layout(LowBitLayout):
    """MXFP4 of compressed-tensors: a power of two for 32 weights. Twice a value is an integer, so that integers of five
    bits have exactly these weights."""

    name = "mxfp4"
    codes = ".weight_packed"
    code_types = ("U8",)
    required = MappingProxyType({".weight_scale": ("U8", "F8_E8M0")})
    exact = True

    def shape(self, codes: tuple[int, ...], parts: Parts) -> Shape:
        return pair(codes, 2)

    def format(self, shape: Shape, scales: ScaleType) -> GroupFormat | None:
        return None if shape[1] % MX_GROUP else GroupFormat(MX_BITS, MX_GROUP, "middle", "float32")

    def values(self, parts: Parts, shape: Shape, low: int, high: int) -> NDArray[np.float32]:
        scales = np.repeat(from_e8m0(self._scales(parts, shape)[low:high]), MX_GROUP, axis=1)
        return E2M1[nibbles(parts[self.codes][low:high])] * scales

    def quantized(self, parts: Parts, shape: Shape, format: GroupFormat) -> Quantized:
        table = (2 * E2M1 + format.middle).astype(np.uint8)
        scales = from_e8m0(self._scales(parts, shape)) / np.float32(2)
        return Quantized(format, table[nibbles(parts[self.codes])], scales, None)

    def _scales(self, parts: Parts, shape: Shape) -> NDArray[np.uint8]:
        if shape[1] % MX_GROUP:
            raise ValueError(f"{shape[1]} inputs are not whole groups of {MX_GROUP}")
        return fit(parts[".weight_scale"], (shape[0], shape[1] // MX_GROUP), "weight_scale")


@dataclass(frozen=True)
class Nvfp4Layout(LowBitLayout):
    """NVFP4: a scale in FP8 for 16 weights, and one in float32 for the matrix."""

    codes: str = ".weight_packed"
    whole: str = ".weight_global_scale"
    """Ending of the scale of the matrix."""
    divides: bool = True
    """That scale divides (compressed-tensors); else it is a factor (ModelOpt)."""

    name = "nvfp4"
    code_types = ("U8",)

    @property
    def required(self) -> Mapping[str, tuple[str, ...]]:
        return {".weight_scale": ("F8_E4M3",), self.whole: ("F32",)}

    def shape(self, codes: tuple[int, ...], parts: Parts) -> Shape:
        return pair(codes, 2)

    def values(self, parts: Parts, shape: Shape, low: int, high: int) -> NDArray[np.float32]:
        outputs, inputs = shape
        if inputs % NV_GROUP:
            raise ValueError(f"{inputs} inputs are not whole groups of {NV_GROUP}")
        stored = fit(parts[".weight_scale"], (outputs, inputs // NV_GROUP), "weight_scale")
        whole = check_finite(single(parts[self.whole], self.whole[1:]))
        if self.divides and whole == 0:
            raise ValueError(f"{self.whole[1:]} is 0")
        groups = from_e4m3(stored[low:high])
        scales = groups / whole if self.divides else groups * whole
        return E2M1[nibbles(parts[self.codes][low:high])] * np.repeat(scales, NV_GROUP, axis=1)
