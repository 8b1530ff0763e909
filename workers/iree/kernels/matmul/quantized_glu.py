"""The gated linear unit of an MLP with quantized weights, for many rows: its result is quantized for the next product.

What gates and ups are summed to stays in registers, and act(gate) * up in L1, until a group of it is complete.
"""

from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.live_rows import ONE_HEIGHT_ROWS, live_rows
from workers.iree.kernels.ir.memory import L2, Memory
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, LANES
from workers.iree.kernels.ir.partition import partition_count
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.activation_quantization import ActivationQuantization, ActivationQuantizer
from workers.iree.kernels.matmul.quantized_linear import L2_ROWS, SHARING_BLOCKS
from workers.iree.kernels.matmul.quantized_matmul import QuantizedMatmul, QuantizedOperands
from workers.iree.kernels.matmul.quantized_tile import Prefetches, quantized_gemm_tile
from workers.iree.kernels.rowwise.activations import gated_unit


@dataclass(frozen=True, slots=True)
class QuantizedGlu:
    """The products with gates and ups, [2 * ffn] with the gates first, and how their result is quantized."""

    matmul: QuantizedMatmul
    out: ActivationQuantization
    activation: Activation

    @property
    def possible(self) -> bool:
        """True if the kernel can be written: for many rows, with gates and ups side by side."""
        return self.out.rows > ONE_HEIGHT_ROWS and self.pairs > 0

    @property
    def name(self) -> str:
        """The kernel's name."""
        matmul, out = self.matmul, self.out
        return (
            f"baton_quantized_glu_{out.rows}_{out.inputs}_{matmul.activations.inputs}_{matmul.packing.name}_{out.kind}"
        )

    @property
    def pairs(self) -> int:
        """Tiles of gates, and as many of ups, that are summed side by side; 0 if they do not divide a group."""
        tiles = self.matmul.many_tiles // 2
        return tiles if tiles and self.group_tiles % tiles == 0 else 0

    @property
    def group_tiles(self) -> int:
        """Tiles of outputs that share a scale."""
        return self.out.group // LANES


def quantized_glu(name: str, kind: QuantizedGlu) -> str:
    """The result of `quantize_rows`, weights int8 [2 * tiles, bytes] with the gates first, live i32 [1]
    -> what `quantize_rows` gives for act(gate) * up, of which the first `live` rows are computed.
    """
    out = kind.out
    kernel = Kernel(name, partition_count(out.groups, kind.matmul.threads))
    operands = QuantizedOperands.of(kind.matmul, kernel)
    number = kernel.input("live", (1,), "i32")
    quantized = (
        kernel.output("out_levels", out.levels_shape, "i32"),
        kernel.output("out_scales", out.scales_shape, "f32"),
    )
    _GluPartition(kind, kernel, operands, *quantized).write(number)
    return kernel.function()


@dataclass(frozen=True, slots=True)
class _GluBlocks:
    """Blocks of rows that go together. The last one begins before the end of the one in front of it where it would
    reach beyond the live rows."""

    height: int
    rows: Value
    """The live rows, at least as many as a block has."""
    begin: Value
    end: Value

    def row(self, block: Value) -> Value:
        """Return the first row of a block."""
        return (block * self.height).minimum(self.rows - self.height)


class _GluPartition:
    """The code for a partition of the groups of outputs."""

    def __init__(
        self, kind: QuantizedGlu, kernel: Kernel, operands: QuantizedOperands, levels: Memory, scales: Memory
    ) -> None:
        self._kind, self._code, self._operands = kind, kernel.code, operands
        self._partition, self._height = kernel.partition, kind.matmul.many_height
        words = kind.out.group // kind.out.arithmetic.per_word
        self._group = kernel.code.allocate((L2_ROWS, words), "i32")
        """A group of outputs of the rows that go together, as packed words."""
        self._quantizer = ActivationQuantizer(kind.out, self._group, levels, scales)

    def write(self, live: Memory) -> None:
        """Multiply as many rows as go together by all tiles, then the next rows."""
        code, together = self._code, L2_ROWS // self._height
        low, high = self._partition.tapered_range(self._kind.out.groups)
        rows = live_rows(live, self._kind.out.rows).maximum(self._height)
        count = (rows + (self._height - 1)) // self._height

        def some(begin: Value) -> None:
            blocks = _GluBlocks(self._height, rows, begin, (begin + together).minimum(count))
            code.repeat(low, high, lambda group: self._outputs(group, blocks))

        code.repeat(0, count, some, together)

    def _outputs(self, group: Value, blocks: _GluBlocks) -> None:
        """Write a group of outputs of some blocks of rows."""
        kind, code, out = self._kind, self._code, self._kind.out
        steps = kind.group_tiles // kind.pairs

        def step(number: Value) -> None:
            at = group * kind.group_tiles + number * kind.pairs
            code.repeat(blocks.begin, blocks.end, lambda block: self._block(blocks, block, at, number * kind.pairs))

        code.repeat(0, steps, step)
        first = blocks.row(blocks.begin)

        def row(number: Value) -> None:
            inside, arithmetic = number - first, out.arithmetic
            words = LANES // arithmetic.per_word
            values = [
                arithmetic.unpack(self._group.load_vector([inside, word], words))
                for word in range(0, out.group // arithmetic.per_word, words)
            ]
            self._quantizer.write(number, group, values)

        code.repeat(first, blocks.row(blocks.end - 1) + self._height, row)

    def _block(self, blocks: _GluBlocks, block: Value, tile: Value, column: Value) -> None:
        """Multiply a block of rows by tiles of gates and of ups."""
        kind, code, tiles = self._kind, self._code, self._kind.pairs
        start, turn = blocks.row(block), block - blocks.begin
        rows = [start + row for row in range(self._height)]
        apart = kind.matmul.tiles // 2
        both = [tile + half + number for half in (0, apart) for number in range(tiles)]
        sums = quantized_gemm_tile(
            code, kind.matmul, self._operands, both, rows, lambda group: self._prefetches(turn, tile, group)
        )
        for row, totals in enumerate(sums):
            for number, (gate, up) in enumerate(zip(totals[:tiles], totals[tiles:], strict=True)):
                value = kind.out.arithmetic.pack(gated_unit(kind.activation, gate, up))
                at = (column + number) * (LANES // kind.out.arithmetic.per_word)
                self._group.store(value, [start - blocks.row(blocks.begin) + row, at])

    def _prefetches(self, turn: Value, tile: Value, group: Value) -> Prefetches:
        """Prefetch the next tiles: one block of rows those of gates, the next one those of ups, and so on."""
        matmul = self._kind.matmul
        groups, tiles = matmul.activations.groups, self._kind.pairs
        lines = -(-matmul.tile_bytes * tiles * 2 // (CACHE_LINE * groups * SHARING_BLOCKS))
        following = tile + tiles + turn % 2 * (matmul.tiles // 2)
        return Prefetches(self._operands, following, (turn // 2 * groups + group) * (lines * CACHE_LINE), lines, L2)
