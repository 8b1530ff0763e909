"""The layouts of packed weights, in the order in which products read them.

A tile is 16 neighbouring outputs with all of their inputs. A tile of a quantized matrix is read from front to end: one
*block* after the other, which is as many groups of inputs as have whole cache lines of scales and zeros. A block has
the scales of its groups, then their zeros, then their levels: four neighbouring inputs of each output in 32 bits (with
4 bits a level, two such runs share their bytes: the low halves are the first one's). Levels of FP4 are stored as their
codes of four bits (`workers.iree.kernels.matmul.fp4`).
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.quantized_matrix import SCALE_TYPES, GroupFormat, Quantized, ScaleType
from workers.iree.kernels.ir.mlir_types import CACHE_LINE, LANES
from workers.iree.kernels.ir.value import Value
from workers.iree.kernels.matmul.fp4 import fp4_codes
from workers.precision import Quantize

GROUPS = (128, 64, 32)
"""Sizes of groups that are stored, in inputs; a larger group becomes several with equal scales."""
FP4_GROUPS = (*GROUPS, 16)
"""Those of FP4."""
DOT_INPUTS = 4
"""Neighbouring inputs of one output that an integer dot product multiplies and sums."""

T = TypeVar("T", int, Value)
"""A number, or one that a kernel computes."""


def pack_matrix(matrix: NDArray[Any], k: int) -> NDArray[Any]:
    """Pack [N, K] as [ceil(N / 16), K / k, 16, k]; missing rows are zero. K must be a multiple of k, and k numbers have
    at most 8 bytes."""
    rows, columns = matrix.shape
    if rows % LANES:
        matrix = np.concatenate([matrix, np.zeros((-rows % LANES, columns), matrix.dtype)])
    tiles = _interleaved(matrix, k)
    return tiles.view(matrix.dtype).reshape(len(tiles), columns // k, LANES, k)


def _interleaved(matrix: NDArray[Any], k: int) -> NDArray[np.unsignedinteger[Any]]:
    """Return [N / 16, K / k, 16] words of k neighbouring numbers: numpy moves a word much faster than its numbers."""
    words = np.ascontiguousarray(matrix).view(f"u{matrix.itemsize * k}")
    return np.ascontiguousarray(words.reshape(-1, LANES, words.shape[1]).transpose(0, 2, 1))


@dataclass(frozen=True, slots=True)
class Packing:
    """The packing of a quantized matrix."""

    format: GroupFormat

    @property
    def name(self) -> str:
        """A part of the names of kernels."""
        return f"{self.format.width}_{self.format.group}_{self.format.zero}_{self.format.scales}"

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector of levels."""
        return DOT_INPUTS * LANES

    @property
    def level_bytes(self) -> int:
        """Bytes of the levels of a group."""
        return self.format.group * LANES * self.format.bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of a group; its zeros have as many."""
        return LANES * self.format.scale_size

    @property
    def block(self) -> int:
        """Groups of a block."""
        return CACHE_LINE // math.gcd(CACHE_LINE, self.format.entries * self.scale_bytes)

    @property
    def entry_bytes(self) -> int:
        """Bytes of a block before its levels."""
        return self.block * self.format.entries * self.scale_bytes

    def tile_bytes(self, inputs: int) -> int:
        """The last block may have fewer groups."""
        groups = inputs // self.format.group
        return groups * self.level_bytes + -(-groups // self.block) * self.entry_bytes

    def level_byte(self, group: T) -> T:
        """Return the byte of a tile at which the levels of a group begin."""
        return group * self.level_bytes + (group // self.block + 1) * self.entry_bytes

    def entry_byte(self, table: int, group: T) -> T:
        """Return the byte of a tile at which the scales (table 0) or zeros (1) of a group begin."""
        before = group // self.block * (self.entry_bytes + self.block * self.level_bytes)
        return before + (group % self.block + table * self.block) * self.scale_bytes

    def stored_shape(self, outputs: int, inputs: int) -> tuple[int, int]:
        return (-(-outputs // LANES), self.tile_bytes(inputs))

    def pack(self, matrix: Quantized) -> NDArray[np.int8]:
        """Pack a matrix: int8 [tiles, bytes]. Outputs that are missing in the last tile have levels and scales of
        zero."""
        out = np.empty(self.stored_shape(*matrix.levels.shape), np.int8)
        self.pack_into(out, matrix)
        return out

    def pack_into(self, out: NDArray[np.int8], matrix: Quantized) -> None:
        """Like `pack`, into memory of that shape."""
        zeros = matrix.zeros
        if self.format.zero == "level" and zeros is not None:
            zeros = -zeros  # added to a sum of levels
        tables = [self._table(values) for values in (matrix.scales, zeros) if values is not None]
        levels = self._levels(self._filled(matrix.levels)).view(np.int8).reshape(len(out), -1, self.level_bytes)
        groups = levels.shape[1]
        whole = groups - groups % self.block
        for low, high, size in ((0, whole, self.block), (whole, groups, groups - whole)):
            if low == high:
                continue
            start = self.entry_byte(0, low)
            end = start + (high - low) // size * self.entry_bytes + (high - low) * self.level_bytes
            blocks = out[:, start:end].reshape(len(out), (high - low) // size, -1)
            blocks[:, :, : self.entry_bytes] = 0  # a last block that has fewer groups
            for number, part in enumerate(tables):
                entries = part[:, low:high].reshape(*blocks.shape[:2], -1)
                at = number * self.block * self.scale_bytes
                blocks[:, :, at : at + entries.shape[2]] = entries
            blocks[:, :, self.entry_bytes :] = levels[:, low:high].reshape(*blocks.shape[:2], -1)

    def _table(self, values: NDArray[Any]) -> NDArray[np.int8]:
        """Return scales or zeros, [tiles, groups, bytes]."""
        rows = self._filled(values)
        lanes = rows.reshape(-1, LANES, rows.shape[1]).transpose(0, 2, 1)
        return np.ascontiguousarray(lanes, SCALE_TYPES[self.format.scales]).view(np.int8)

    def _filled(self, rows: NDArray[Any]) -> NDArray[Any]:
        missing = -len(rows) % LANES
        return np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)]) if missing else rows

    def _levels(self, levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the levels in their order, [tiles, bytes]."""
        runs = _interleaved(fp4_codes(levels) if self.format.e2m1 else levels, DOT_INPUTS)
        if self.format.bits == 4:
            runs = runs[:, ::2] | runs[:, 1::2] << np.uint32(4)
        return runs.view(np.uint8).reshape(len(runs), -1)


def stored_format(formats: Collection[GroupFormat], inputs: int) -> GroupFormat | None:
    """Return the format in which quantized matrices are packed together without a change of their weights, or None.

    MLX's mixed recipes give the values of a layer more bits than its queries and keys.
    """
    groups = FP4_GROUPS if all(each.e2m1 for each in formats) else GROUPS
    group = next((group for group in groups if inputs % group == 0 and not any(f.group % group for f in formats)), None)
    scales, zeros = {each.scales for each in formats}, {each.zero for each in formats}
    if group is None or len(scales) > 1 or ("bias" in zeros and len(zeros) > 1):
        return None
    if all(each.e2m1 for each in formats):
        return GroupFormat(4, group, "middle", scales.pop(), e2m1=True)
    bits = 4 if all(each.bits <= 4 and not each.e2m1 for each in formats) else 8
    zero = zeros.pop()
    # The middle of fewer bits is another level.
    if zero != "bias" and (zeros or any(each.bits != bits or each.e2m1 for each in formats)):
        zero = "level"
    return GroupFormat(bits, group, zero, scales.pop())


def restore(matrix: Quantized, format: GroupFormat) -> Quantized:
    """Return the matrix in the format that `stored_format` gave for it."""
    zeros = matrix.zeros
    if zeros is None and format.zero == "level":
        zeros = np.full_like(matrix.scales, matrix.format.middle)
    times = matrix.format.group // format.group
    scales = np.repeat(matrix.scales, times, axis=1)
    return Quantized(format, matrix.levels, scales, None if zeros is None else np.repeat(zeros, times, axis=1))


def made_format(kind: Quantize, inputs: int) -> GroupFormat | None:
    """Return the format that `--quantize` gives a matrix; None where no group divides its inputs.

    8 bits with the zero in the middle lose next to nothing; 4 bits need a bias (docs/adr/0016).
    """
    if kind == "none":
        return None
    scales: ScaleType = "float16"
    group = next((group for group in (64, 32) if inputs % group == 0), None)
    if group is None:
        return None
    if kind == "int8":
        return GroupFormat(8, group, "middle", scales)
    return GroupFormat(4, group, "bias", scales)
