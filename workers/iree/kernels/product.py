"""What a product with weights of few bits is made of: its rows, its matrix, and how the work is cut."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from workers.iree.kernels.code import LANES
from workers.iree.kernels.executable import Operand
from workers.iree.kernels.rounding import Rounded
from workers.iree.kernels.shares import workgroups
from workers.iree.quantized import RUN, Packing

Dot = Literal["vpdpbusd", "plain"]
"""How four levels of each lane are multiplied by four activations and added up."""

CHAINS = 4
"""Products that do not wait for each other, at least."""
ROWS_IN_CACHE = 64
"""Rows that are multiplied by a tile of weights before the next tile: their activations stay in the second cache."""


def choose_dot(features: AbstractSet[str]) -> Dot:
    """The instruction for a CPU with `features` (LLVM's names)."""
    return "vpdpbusd" if "avx512vnni" in features else "plain"


@dataclass(frozen=True, slots=True)
class Product:
    """Rounded rows times a packed matrix, transposed: float32 [padded, outputs]."""

    rounded: Rounded
    outputs: int
    """Those of whole tiles."""
    packing: Packing
    dot: Dot
    bias: bool
    """Numbers are added to the outputs."""
    threads: int

    @property
    def workgroups(self) -> int:
        return workgroups(self.tiles, self.threads)

    @property
    def name(self) -> str:
        size = f"{self.rounded.rows}_{self.outputs}_{self.rounded.inputs}"
        return f"baton_dot_{size}_{self.packing.name}{'_bias' if self.bias else ''}"

    @property
    def tiles(self) -> int:
        return self.outputs // LANES

    @property
    def vectors(self) -> int:
        """Vectors of levels in one group of activations."""
        return self.rounded.group * self.packing.format.bits // (8 * RUN)

    @property
    def dots(self) -> int:
        return self.rounded.group // RUN

    @property
    def block(self) -> int:
        """Rows that are multiplied at once."""
        return self.rounded.block

    @property
    def blocks(self) -> int:
        return self.rounded.padded // self.block

    @property
    def together(self) -> int:
        """Blocks that are multiplied by a tile before the next tile."""
        return max(1, min(self.blocks, ROWS_IN_CACHE // self.block))

    @property
    def sharing(self) -> int:
        """Blocks that fetch the next tile between them."""
        return self.together

    @property
    def chains(self) -> int:
        """Sums of integers of one row and plane: a few rows alone would wait for themselves."""
        return max(1, CHAINS // self.block)

    def operands(self) -> tuple[Operand, Operand, Operand]:
        """The rows' levels and sums and the matrix, as bodies with `tile_sums` name them."""
        r = self.rounded
        levels = Operand("levels", r.levels_shape, "i8", ((r.planes, r.padded, r.inputs // RUN), "i32"))
        sums = Operand("sums", r.sums_shape, "f32")
        return levels, sums, Operand("weights", self.packing.stored_shape(self.outputs, r.inputs), "i8")
