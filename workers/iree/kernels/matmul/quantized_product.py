"""A product with quantized weights: its rows, its matrix, and how the work is divided."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import partition_count
from workers.iree.kernels.matmul.activation_quantization import Rounded
from workers.iree.kernels.matmul.packing import RUN, Packing

Dot = Literal["vpdpbusd", "plain"]
"""How four levels of each lane are multiplied by four activations and added up."""


def choose_dot(features: AbstractSet[str]) -> Dot:
    """Return the instruction for a CPU with `features` (LLVM's names)."""
    return "vpdpbusd" if "avx512vnni" in features else "plain"


@dataclass(frozen=True, slots=True)
class Product:
    """Quantized rows times a packed matrix, transposed: float32 [rows, outputs]."""

    rounded: Rounded
    outputs: int
    """Outputs of whole tiles."""
    packing: Packing
    dot: Dot
    threads: int

    @property
    def workgroups(self) -> int:
        return partition_count(self.tiles, self.threads)

    @property
    def name(self) -> str:
        return f"baton_dot_{self.rounded.rows}_{self.outputs}_{self.rounded.inputs}_{self.packing.name}"

    @property
    def tiles(self) -> int:
        return self.outputs // LANES

    @property
    def tile_bytes(self) -> int:
        return self.packing.tile_bytes(self.rounded.inputs)

    @property
    def vectors(self) -> int:
        """Vectors of levels in one group of activations."""
        return self.rounded.group * self.packing.format.bits // (8 * RUN)

    @property
    def max_height(self) -> int:
        """Rows of one block: their sums, of integers and of floats, stay in registers beside what they are made of."""
        if self.rounded.planes > 1:
            return 4
        return 12 if self.dot == "vpdpbusd" else 8

    @property
    def dots(self) -> int:
        """Products of a group, each of four inputs."""
        return self.rounded.group // RUN


@dataclass(frozen=True, slots=True)
class Factors:
    """The memory that a product reads: the quantized rows and the matrix."""

    levels: Memory
    sums: Memory
    weights: Memory

    @classmethod
    def taken(cls, p: Product, d: Kernel) -> "Factors":
        """Take the first operands of a kernel."""
        r = p.rounded
        levels, sums = d.take(r.levels_shape, "i32"), d.take(r.sums_shape, "f32")
        return cls(levels, sums, d.take(p.packing.stored_shape(p.outputs, r.inputs), "i8"))
