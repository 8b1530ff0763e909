"""The products of a mixture of experts with quantized weights: those of `quantized_tile` for the pairs of one expert.

Rows are quantized as for any other product, so a pair's sums are what the expert's matrix alone would give.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.checkpoints.architectures.parts import Activation
from workers.iree.kernels.ir.arithmetic import Arithmetic, row_stride
from workers.iree.kernels.ir.builder import Code
from workers.iree.kernels.ir.kernel import Kernel
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.activation_quantization import ActivationQuantization
from workers.iree.kernels.matmul.integer_dots import IntegerDots
from workers.iree.kernels.matmul.packing import Packing
from workers.iree.kernels.matmul.quantized_matmul import QuantizedMatmul, QuantizedOperands
from workers.iree.kernels.matmul.quantized_tile import (
    Prefetches,
    prefetch_ahead,
    quantized_gemm_tile,
)
from workers.iree.kernels.moe.experts import ExpertPartition, ExpertTiles
from workers.iree.kernels.moe.routing import Mixture
from workers.iree.kernels.rowwise.activations import activated


@dataclass(frozen=True, slots=True)
class QuantizedExperts:
    """One of a mixture's two quantized matrices, and the rows that it is multiplied by."""

    mixture: Mixture
    activations: ActivationQuantization
    packing: Packing
    integer_dots: IntegerDots
    threads: int

    def product(self, outputs: int) -> QuantizedMatmul:
        """`outputs` are those of one expert."""
        whole = outputs * self.mixture.experts.count
        return QuantizedMatmul(self.activations, whole, self.packing, self.integer_dots, self.threads)

    def partition(self, matmul: QuantizedMatmul, tiles: int, halves: int) -> ExpertPartition:
        """`halves` tiles of weights are read for each of `tiles`."""
        return ExpertPartition.of(self.mixture, tiles, halves, matmul.tile_bytes, self.threads, matmul.max_height)


def quantized_experts_up(name: str, e: QuantizedExperts, arithmetic: Arithmetic, activation: Activation) -> str:
    """Levels and scales of the step's rows, weights int8 [count * halves * ffn / 16, bytes], what `routing.group` gives
    (, biases f32 [count * halves * ffn]) -> the GLU of each pair, or its activation without a gate, packed words
    [pairs, row_stride] of width ffn.
    """
    m, ffn, halves = e.mixture, e.mixture.experts.ffn, e.mixture.experts.halves
    matmul = e.product(halves * ffn)
    partition = e.partition(matmul, m.up_tiles, halves)
    words = LANES // arithmetic.per_word
    kernel = Kernel(name, partition.workgroups)
    operands = QuantizedOperands.of(matmul, kernel)
    lists, bias = m.take_lists(kernel), m.take_bias(kernel, halves * ffn)
    out = kernel.output("out", (m.pairs, row_stride(ffn, arithmetic)), "i32")

    def write(part: ExpertTiles) -> None:
        rows = [pair // m.experts.per_token for pair in part.pairs]
        begin = part.expert * (halves * m.up_tiles) + part.first
        sums: Sequence[Sequence[Value]]
        if m.experts.gated:
            sums = _gate_and_up(kernel.code, matmul, operands, rows, begin, m.up_tiles, part.ahead)
        else:
            sums = _of_tile(kernel.code, matmul, operands, rows, begin, begin + part.ahead)
        for pair, parts in zip(part.pairs, sums, strict=True):
            if bias is not None:
                column = part.expert * (halves * ffn) + part.first * LANES
                parts = [each + bias.load_vector([column + n * ffn]) for n, each in enumerate(parts)]
            out.store(arithmetic.pack(activated(activation, parts)), [pair, part.first * words])

    partition.each_tile(kernel, lists, lambda _: 1, write)
    return kernel.function()


def quantized_experts_down(name: str, e: QuantizedExperts) -> str:
    """Levels and scales of the pairs, weights int8 [count * hidden / 16, bytes], what `routing.group` gives
    (, biases f32 [count * hidden]) -> f32 [pairs, hidden].
    """
    m = e.mixture
    matmul = e.product(m.hidden)
    partition = e.partition(matmul, m.down_tiles, 1)
    kernel = Kernel(name, partition.workgroups)
    operands = QuantizedOperands.of(matmul, kernel)
    lists, bias = m.take_lists(kernel), m.take_bias(kernel, m.hidden)
    out = kernel.output("out", (m.pairs, m.hidden), "f32")

    def write(part: ExpertTiles) -> None:
        at = part.expert * m.down_tiles + part.first
        sums = _of_tile(kernel.code, matmul, operands, part.pairs, at, at + part.ahead)
        for pair, (total,) in zip(part.pairs, sums, strict=True):
            if bias is not None:
                total = total + bias.load_vector([part.expert * m.hidden + part.first * LANES])
            out.store(total, [pair, part.first * LANES])

    partition.each_tile(kernel, lists, lambda _: 1, write)
    return kernel.function()


def _of_tile(
    code: Code, matmul: QuantizedMatmul, operands: QuantizedOperands, rows: list[Value], tile: Value, following: Value
) -> list[list[Value]]:
    """Return the sum of each row with a tile, while the tile `following` is fetched."""

    def soon(group: Value) -> Prefetches:
        return prefetch_ahead(matmul, operands, tile, following, group)

    return quantized_gemm_tile(code, matmul, operands, [tile], rows, soon)


def _gate_and_up(
    code: Code,
    matmul: QuantizedMatmul,
    operands: QuantizedOperands,
    rows: list[Value],
    gate: Value,
    apart: int,
    ahead: Value,
) -> list[tuple[Value, Value]]:
    """Return both sums of each row: of the tile `gate` and of the one `apart` tiles further on, one after the other.
    The next gate is `ahead` tiles further on."""

    def half(which: Value, before: list[Value]) -> list[Value]:
        tile = gate + which * apart
        # The other half is read next, and then the next gate.
        following = gate + which.equals(0).select(code.index(apart), ahead)
        sums = _of_tile(code, matmul, operands, rows, tile, following)
        return [each for row, (total,) in enumerate(sums) for each in (before[2 * row + 1], total)]

    sums = code.loop(0, 2, [code.floats(0.0)] * (2 * len(rows)), half)
    return list(zip(sums[::2], sums[1::2], strict=True))
