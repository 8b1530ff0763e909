"""Integers of compressed-tensors and of LLM.int8(): matrices whose weights keep their exact values."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.low_bits.codes import check_finite
from workers.checkpoints.low_bits.layout import (
    KERNEL_GROUPS,
    SCALE_TYPES,
    LowBitLayout,
    Parts,
    Shape,
    fit,
    pair,
    single,
)
from workers.checkpoints.quantized_matrix import SCALE_TYPES as KINDS
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized, ScaleType, unpack_words


@dataclass(frozen=True)
class IntegerLayout(LowBitLayout):
    """Integers with a scale for each group of inputs, each output or the matrix."""

    bits: int = 8
    group: int | None = None
    """Inputs that share a scale; None for all of an output."""
    symmetric: bool = True
    packed: bool = False
    """Integers are packed into words of 32 bits (`pack-quantized`)."""

    exact = True

    @property
    def name(self) -> str:
        return f"int{self.bits}"

    @property
    def codes(self) -> str:
        return ".weight_packed" if self.packed else ".weight"

    @property
    def code_types(self) -> tuple[str, ...]:
        return ("I32",) if self.packed else ("I8",)

    @property
    def required(self) -> Mapping[str, tuple[str, ...]]:
        zeros = {} if self.symmetric else {".weight_zero_point": ("I32",)}
        return {".weight_scale": SCALE_TYPES, **zeros}

    @property
    def optional(self) -> Mapping[str, tuple[str, ...]]:
        return {".weight_shape": ("I64", "I32"), ".weight_g_idx": ("I32", "I64")}

    def shape(self, codes: tuple[int, ...], parts: Parts) -> Shape:
        return pair(codes, 32 / self.bits if self.packed else 1)

    def format(self, shape: Shape, scales: ScaleType) -> GroupFormat | None:
        own = self.group or shape[1]
        group = next((group for group in KERNEL_GROUPS if own % group == 0 and shape[1] % group == 0), None)
        zero = "middle" if self.symmetric else "level"
        return None if group is None else GroupFormat(self.bits, group, zero, scales)  # type: ignore[arg-type]

    def values(self, parts: Parts, shape: Shape, low: int, high: int) -> NDArray[np.float32]:
        levels, scales, zeros, group = self._unpacked(parts, shape)
        steps = levels[low:high].astype(np.float32).reshape(high - low, -1, group) - zeros[low:high, :, None]
        return (steps * check_finite(scales)[low:high, :, None]).reshape(high - low, shape[1])

    def quantized(self, parts: Parts, shape: Shape, format: GroupFormat) -> Quantized:
        levels, scales, zeros, group = self._unpacked(parts, shape)
        times = group // format.group
        check_finite(scales)
        wide = np.repeat(scales, times, axis=1)
        kind = KINDS[format.scales]
        return Quantized(format, levels, wide, None if self.symmetric else np.repeat(zeros, times, axis=1).astype(kind))

    def _unpacked(
        self, parts: Parts, shape: Shape
    ) -> tuple[NDArray[np.uint8], NDArray[np.generic], NDArray[np.float32], int]:
        """Return levels, scales and zeros [outputs, groups], and the size of a group."""
        outputs, inputs = shape
        group, middle = self.group or inputs, 1 << (self.bits - 1)
        if inputs % group:
            raise ValueError(f"{inputs} inputs are not whole groups of {group}")
        order = parts.get(".weight_g_idx")
        if order is not None and not np.array_equal(order, np.arange(inputs) // group):
            raise ValueError("its inputs are reordered (weight_g_idx), which is not supported")
        stored = parts[self.codes]
        levels = unpack_words(stored, self.bits) if self.packed else (stored.astype(np.int16) + middle).astype(np.uint8)
        if int(levels.max(initial=0)) >= 2 * middle:
            raise ValueError(f"has integers of more than {self.bits} bits")
        scales, entries = parts[".weight_scale"], (outputs, inputs // group)
        if scales.size == 1:
            scales = np.broadcast_to(scales.reshape(1, 1), entries)
        elif scales.ndim == 1 and entries[1] == 1:
            scales = scales.reshape(-1, 1)
        zeros = np.full(entries, middle, np.float32)
        if not self.symmetric:
            words = np.ascontiguousarray(parts[".weight_zero_point"].T)
            zeros = unpack_words(words, self.bits).T[:outputs].astype(np.float32)
        return levels, fit(scales, entries, "weight_scale"), fit(zeros, entries, "weight_zero_point"), group


@dataclass(frozen=True)
class Int8RowsLayout(LowBitLayout):
    """LLM.int8() of bitsandbytes: int8 with the largest magnitude of each output, `SCB`, which is level 127."""

    name = "int8"
    codes = ".weight"
    code_types = ("I8",)
    required = MappingProxyType({".SCB": ("F32",)})
    optional = MappingProxyType({".weight_format": ("U8",)})
    exact = True

    def shape(self, codes: tuple[int, ...], parts: Parts) -> Shape:
        return pair(codes)

    def values(self, parts: Parts, shape: Shape, low: int, high: int) -> NDArray[np.float32]:
        return parts[self.codes][low:high].astype(np.float32) * self._scales(parts, shape)[low:high, None]

    def quantized(self, parts: Parts, shape: Shape, format: GroupFormat) -> Quantized:
        levels = (parts[self.codes].astype(np.int16) + format.middle).astype(np.uint8)
        scales = np.repeat(self._scales(parts, shape)[:, None], shape[1] // format.group, axis=1)
        return Quantized(format, levels, scales, None)

    def _scales(self, parts: Parts, shape: Shape) -> NDArray[np.float32]:
        order = parts.get(".weight_format")
        if order is not None and single(order, "weight_format") != 0:
            raise ValueError("weight_format is not that of rows (0)")
        return check_finite(fit(parts[".SCB"], shape[:1], "SCB")) / np.float32(127)
