"""A product with quantized weights: its rows, its matrix, and the division of its work."""

from dataclasses import dataclass

from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.memory import Memory
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.partition import partition_count
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.activation_quantization import MAX_GROUP, ActivationQuantization
from workers.iree.kernels.matmul.integer_dot import IntegerDot
from workers.iree.kernels.matmul.integer_dots import IntegerDots
from workers.iree.kernels.matmul.packing import DOT_INPUTS, Packing

MANY_SUMS = 16
"""Integer sums of a block of many rows, of all rows and tiles. Its float sums wait in memory where registers end."""
SHORT_GROUP_SUMS, SHORT_GROUP_TILES = 12, 2
"""The same, and the tiles, where groups are shorter than `MAX_GROUP`: float sums are needed more often, and stay in
registers."""


@dataclass(frozen=True, slots=True)
class QuantizedMatmul:
    """Quantized rows times a packed matrix, transposed: float32 [rows, outputs]."""

    activations: ActivationQuantization
    outputs: int
    """Outputs of whole tiles."""
    packing: Packing
    integer_dots: IntegerDots
    threads: int

    @property
    def dot(self) -> IntegerDot:
        """The dot products of its levels."""
        return self.integer_dots.of(self.packing.format)

    @property
    def workgroups(self) -> int:
        return partition_count(self.tiles, self.threads)

    @property
    def name(self) -> str:
        """The kernel's name, without what it takes besides."""
        rows, inputs = self.activations.rows, self.activations.inputs
        return f"baton_quantized_linear_{rows}_{self.outputs}_{inputs}_{self.packing.name}"

    @property
    def tiles(self) -> int:
        return self.outputs // LANES

    @property
    def tile_bytes(self) -> int:
        return self.packing.tile_bytes(self.activations.inputs)

    def level_byte(self, group: Value) -> Value:
        """Return the byte of a tile at which the levels of a group of activations begin."""
        parts, levels = self._parts, self.vectors * self.packing.vector_bytes
        return group * levels + (group // (parts * self.packing.block) + 1) * self.packing.entry_bytes

    def entry_byte(self, table: int, group: Value) -> Value:
        """Return the byte of a tile at which the scales (table 0) or zeros (1) of a group of activations begin."""
        return self.packing.entry_byte(table, group // self._parts)

    @property
    def _parts(self) -> int:
        """Groups of activations in a group of weights."""
        return self.packing.format.group // self.activations.group

    @property
    def vectors(self) -> int:
        """Vectors of levels in one group of activations."""
        return self.activations.group * self.packing.format.bits // (8 * DOT_INPUTS)

    @property
    def max_height(self) -> int:
        """Rows of one block: their sums, of integers and of floats, stay in registers beside what they are made of."""
        return min(4, self.dot.max_height) if self.activations.limbs > 1 else self.dot.max_height

    @property
    def many_tiles(self) -> int:
        """Tiles that many rows are multiplied by at once: the fewer bytes a tile has, the more of them L1 holds."""
        if not self.dot.several_tiles or self.activations.limbs > 1:
            return 1
        return min(SHORT_GROUP_TILES if self._short_groups else MANY_SUMS // self.packing.format.bits, self.tiles)

    @property
    def many_height(self) -> int:
        """Rows of a block of many."""
        if self.many_tiles == 1:
            return self.max_height
        return (SHORT_GROUP_SUMS if self._short_groups else MANY_SUMS) // self.many_tiles

    @property
    def _short_groups(self) -> bool:
        return self.activations.group < MAX_GROUP

    @property
    def dots(self) -> int:
        """Dot products of a group, each of four inputs."""
        return self.activations.group // DOT_INPUTS


@dataclass(frozen=True, slots=True)
class QuantizedOperands:
    """The memory that a product reads: the quantized rows, and the matrix."""

    levels: Memory
    scales: Memory
    weights: Memory

    @classmethod
    def of(cls, matmul: QuantizedMatmul, kernel: Kernel) -> "QuantizedOperands":
        """Take the first operands of a kernel."""
        kind = matmul.activations
        return cls(
            kernel.input("levels", kind.levels_shape, "i32"),
            kernel.input("scales", kind.scales_shape, "f32"),
            kernel.input("weight", matmul.packing.stored_shape(matmul.outputs, kind.inputs), "i8"),
        )
