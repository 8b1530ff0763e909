"""The MLIR types of kernels, and the sizes of the machine that shape them."""

from collections.abc import Sequence
from dataclasses import dataclass

LANES = 16
"""Lanes of a vector: one AVX-512 register of float32. Narrower machines use several registers."""
CACHE_LINE = 64
"""Bytes of a cache line."""
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "index": 64, "f16": 16, "bf16": 16, "f32": 32}
"""Bits of each element type."""
FLOATS = frozenset({"f16", "bf16", "f32"})
"""The floating-point element types."""
ELEMENTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int32": "i32", "uint32": "ui32"}
"""MLIR's names of numpy's element types."""


@dataclass(frozen=True, slots=True)
class Type:
    """The type of an SSA value: a scalar, or a vector of `lanes` elements."""

    element: str
    lanes: int = 0
    """0 is a scalar."""

    def __post_init__(self) -> None:
        if self.element not in BITS:
            raise TypeError(f"{self.element!r} is not one of {', '.join(BITS)}")

    def __str__(self) -> str:
        return f"vector<{self.lanes}x{self.element}>" if self.lanes else self.element

    @property
    def is_float(self) -> bool:
        return self.element in FLOATS

    @property
    def bits(self) -> int:
        """Bits of all lanes together."""
        return BITS[self.element] * max(self.lanes, 1)

    def of(self, element: str) -> "Type":
        """The type with as many lanes of another element."""
        return Type(element, self.lanes)


INDEX = Type("index")
I32 = Type("i32")
F32 = Type("f32")
I32_VECTOR = Type("i32", LANES)
F32_VECTOR = Type("f32", LANES)


def size_of(element: str) -> int:
    """Bytes of an element in memory."""
    return BITS[element] // 8


def tensor(shape: Sequence[int | str], element: str) -> str:
    """Return the tensor type as MLIR writes it: `tensor((2, "?"), "f32")` is `tensor<2x?xf32>`."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"
