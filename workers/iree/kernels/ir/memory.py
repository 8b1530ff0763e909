"""Typed memory: loads and stores of scalars and vectors, checked when they are written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from workers.iree.kernels.ir.mlir_lines import MlirLines
from workers.iree.kernels.ir.mlir_types import INDEX, LANES, Type, tensor
from workers.iree.kernels.ir.value import Value, constant

ROWS = -1
"""In a shape: as many rows as a call has."""
Index = Value | int
L1, L2, L1_ONCE = 3, 2, 0
"""The caches that `prefetch` fetches to, as `memref.prefetch` counts them: L1, L2, and L1 for a single use."""


def memref(shape: Sequence[int], element: str) -> str:
    """Return the memref type as MLIR writes it."""
    return tensor(["?" if size == ROWS else size for size in shape], element).replace("tensor", "memref", 1)


@dataclass(frozen=True, slots=True)
class Memory:
    """A memref: a buffer of the kernel, or of a workgroup's stack.

    `at` is one index for each dimension; a vector lies along the last one.
    """

    code: MlirLines
    name: str
    shape: tuple[int, ...]
    element: str

    @property
    def type(self) -> str:
        return memref(self.shape, self.element)

    def load(self, at: Sequence[Index]) -> Value:
        """Load one element."""
        return self._let(f"memref.load {self._place(at)} : {self.type}", Type(self.element))

    def load_index(self, at: Sequence[Index]) -> Value:
        """Load an int32 element as an index."""
        return self.load(at).astype("index", signed=True)

    def load_vector(self, at: Sequence[Index], lanes: int = LANES) -> Value:
        """Load `lanes` neighbouring elements."""
        kind = Type(self.element, lanes)
        return self._let(f"vector.load {self._place(at)} : {self.type}, {kind}", kind)

    def load_masked(self, at: Sequence[Index], mask: Sequence[bool]) -> Value:
        """Load the neighbouring elements whose mask is set, and 0 for the others."""
        kind, bits = Type(self.element, len(mask)), Type("i1", len(mask))
        flags = ", ".join(str(each).lower() for each in mask)
        names = self.code.constant_name(f"dense<[{flags}]> : {bits}"), constant(self.code, 0, kind).name
        text = f"vector.maskedload {self._place(at)}, {', '.join(names)} : {self.type}, {bits}, {kind} into {kind}"
        return self._let(text, kind)

    def load_padded(self, at: Sequence[Index], filler: float, lanes: int = LANES) -> Value:
        """Load `lanes` neighbouring elements, and `filler` for those beyond the end."""
        kind, padding = Type(self.element, lanes), constant(self.code, filler, Type(self.element))
        text = f"vector.transfer_read {self._place(at)}, {padding.name} {{in_bounds = [false]}} : {self.type}, {kind}"
        return self._let(text, kind)

    def store(self, value: Value, at: Sequence[Index]) -> None:
        """Store a scalar, or a vector's neighbouring elements."""
        if value.type.element != self.element:
            raise TypeError(f"store: {value.type} into {self.type}")
        self._check_owner(value)
        if value.type.lanes:
            self.code.do(f"vector.store {value.name}, {self._place(at)} : {self.type}, {value.type}")
        else:
            self.code.do(f"memref.store {value.name}, {self._place(at)} : {self.type}")

    def prefetch(self, at: Sequence[Index], cache: int = L1) -> None:
        """Have a cache line fetched; one that is out of bounds is not."""
        self.code.do(f"memref.prefetch {self._place(at)}, read, locality<{cache}>, data : {self.type}")

    def fetch_add(self, number: int, at: Sequence[Index]) -> Value:
        """Add a number atomically and return what the element was, as an index.

        A thread that sees the sum sees everything that was written before it.
        """
        addend = constant(self.code, number, Type(self.element))
        kinds = f"({self.element}, {self.type}) -> {self.element}"
        text = f"memref.atomic_rmw addi {addend.name}, {self._place(at)} : {kinds}"
        return self._let(text, Type(self.element)).astype("index", signed=True)

    @property
    def size(self) -> int:
        """Elements of all dimensions."""
        return math.prod(self.shape)

    def _place(self, at: Sequence[Index]) -> str:
        if len(at) != len(self.shape):
            raise TypeError(f"{self.type} has {len(self.shape)} dimensions, not {len(at)}")
        indices = [each if isinstance(each, Value) else constant(self.code, each, INDEX) for each in at]
        for each in indices:
            if each.type != INDEX:
                raise TypeError(f"{self.type} is indexed by {each.type}, not index")
            self._check_owner(each)
        return f"{self.name}[{', '.join(each.name for each in indices)}]"

    def _check_owner(self, value: Value) -> None:
        if value.code is not self.code:
            raise TypeError(f"{self.name} and {value.name} belong to different kernels")

    def _let(self, expression: str, type: Type) -> Value:
        return Value(self.code, self.code.let(expression), type)
