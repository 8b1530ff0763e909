"""The elements of the KV cache: numbers of the arithmetic's type, or levels with a scale for each row of a head.

A head's levels are followed by the scales of its rows, float32. A row is quantized by itself, so that its bytes depend
on its own values alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from workers.iree.kernels.ir.arithmetic import Arithmetic, Bf16Dot
from workers.iree.kernels.ir.memory import Index, Memory
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, F32_VECTOR, LANES, Type, size_of
from workers.iree.kernels.ir.operations import absolute, intrinsic, round_even
from workers.iree.kernels.ir.value import Value
from workers.precision import MIN_TOP, SCALE_BYTES, max_level

_MIN_BITS = int(np.float32(MIN_TOP).view(np.int32))
"""Magnitudes are in the order of their bits, and NaN is above all of them."""


class KvElements(Protocol):
    """The elements in which keys and values are stored."""

    @property
    def element(self) -> str:
        """MLIR's type of the cache."""

    @property
    def k(self) -> int:
        """Neighbours of a step."""

    @property
    def per_load(self) -> int:
        """Steps of keys, or vectors of lanes of a step of values, that one load gets for 16 outputs."""

    def load(self, source: Memory, at: Sequence[Index]) -> list[list[Value]]:
        """Load the right operands of `per_load` steps, each as `Arithmetic.load` does, without scales."""


@dataclass(frozen=True, slots=True)
class PlainElements:
    """Numbers as the arithmetic multiplies them."""

    arithmetic: Arithmetic
    per_load: ClassVar[int] = 1

    @property
    def element(self) -> str:
        return self.arithmetic.element

    @property
    def k(self) -> int:
        return self.arithmetic.k

    def load(self, source: Memory, at: Sequence[Index]) -> list[list[Value]]:
        return [self.arithmetic.load(source, at)]


@dataclass(frozen=True, slots=True)
class LevelElements:
    """Levels of 8 or 4 bits, which every type of the arithmetics has exactly. Two of 4 bits share a byte: the second
    one has the upper bits."""

    arithmetic: Arithmetic
    bits: int
    element: ClassVar[str] = "i8"

    @property
    def k(self) -> int:
        """As many as a packed word of the left operand has, so that a step is one product."""
        return self.arithmetic.per_word

    @property
    def per_load(self) -> int:
        return 8 // self.bits

    def load(self, source: Memory, at: Sequence[Index]) -> list[list[Value]]:
        stored = source.load_vector(at, LANES * self.k)
        parts = [stored.part(first, LANES).astype("i32", signed=True) for first in range(0, LANES * self.k, LANES)]
        if self.bits == 8:
            return [self._operand(parts)]
        low = [(part << 28).shift_right_signed(28) for part in parts]
        return [self._operand(low), self._operand([part.shift_right_signed(4) for part in parts])]

    def _operand(self, levels: Sequence[Value]) -> list[Value]:
        """Return int32 levels as the right operand of a step."""
        floats = [part.astype("f32", signed=True) for part in levels]
        if self.k == 1:
            return floats
        low, high = floats
        if isinstance(self.arithmetic, Bf16Dot):
            pairs = Type("bf16", 2 * LANES)
            name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
            return [intrinsic(name, [high, low], [F32_VECTOR, F32_VECTOR], pairs)]
        return [low.concatenate(high).astype("bf16")]


def kv_elements(arithmetic: Arithmetic, bits: int) -> KvElements:
    """Return the elements of a cache of levels of so many bits; 0 is one of the model's type."""
    return LevelElements(arithmetic, bits) if bits else PlainElements(arithmetic)


def elements_of_line(elements: KvElements) -> int:
    """Return how many elements a cache line has."""
    return CACHE_LINE // size_of(elements.element)


@dataclass(frozen=True, slots=True)
class QuantizedRow:
    """A row of a head as levels."""

    levels: list[Value]
    """int8 vectors."""
    scale: Value
    """float32."""

    @classmethod
    def of(cls, values: Sequence[Value], bits: int) -> "QuantizedRow":
        """Quantize the float32 vectors of a row, which may differ in size. The largest magnitude becomes the largest
        level or its negative, and ties go to the even level. A NaN or infinity makes the scale NaN or infinite, and so
        every result."""
        largest: Value | None = None
        for value in values:
            here = absolute(value).bitcast("i32").reduce("maxsi")
            largest = here.maximum(_MIN_BITS if largest is None else largest, signed=True)
        assert largest is not None  # a row has lanes
        top = largest.view("f32")
        inverse, levels = max_level(bits) / top, []
        for value in values:
            integers = round_even(value * inverse).astype("i32")
            # Not `astype`: IREE would make a dozen instructions of what is one for LLVM.
            levels.append(integers.bitcast("i8").shuffle(range(0, 4 * value.type.lanes, 4)))
        return cls(levels, top / max_level(bits))


def pack_pairs(levels: Value, run: int) -> Value:
    """Pack levels of 4 bits: each run of so many lanes with the one behind it."""
    lanes = range(levels.type.lanes)
    low, high = (levels.shuffle([lane for lane in lanes if lane // run % 2 == half]) for half in (0, 1))
    return (low & 15) | (high << 4)


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of a head's rows, behind its levels."""

    cache: Memory
    levels: int
    """Levels of a head."""

    def load(self, head: Value, row: Value) -> Value:
        """Load the scales of 16 rows of the head that begins at element `head`, float32 [16]."""
        return self.cache.load_vector([self._place(head, row)], LANES * SCALE_BYTES).bitcast("f32")

    def store(self, scale: Value, head: Value, row: Value) -> None:
        """Store the scale of a row."""
        self.cache.store(scale.broadcast(1).bitcast("i8"), [self._place(head, row)])

    def _place(self, head: Value, row: Value) -> Value:
        return head + row * SCALE_BYTES + self.levels
