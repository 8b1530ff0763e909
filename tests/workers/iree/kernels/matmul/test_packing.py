"""The layout of packed matrices."""

import itertools

import numpy as np
import pytest

from workers.checkpoints.quantized_matrix import GroupFormat
from workers.iree.kernels.ir.mlir_types import CACHE_LINE
from workers.iree.kernels.matmul.packing import Packing, pack_matrix


def test_pack() -> None:
    packed = pack_matrix(np.arange(34, dtype=np.int32).reshape(17, 2), 2)
    assert packed.shape == (2, 1, 16, 2)
    assert packed[0, 0, 3].tolist() == [6, 7]
    assert packed[1, 0].tolist() == [[32, 33], *[[0, 0]] * 15]


@pytest.mark.parametrize("groups", [1, 2, 5])
@pytest.mark.parametrize(
    ("format", "block"),
    [
        (GroupFormat(4, 64, "bias", "float16"), 1),
        (GroupFormat(8, 64, "middle", "float16"), 2),
        (GroupFormat(8, 32, "middle", "float32"), 1),
        (GroupFormat(4, 32, "level", "bfloat16"), 1),
        (GroupFormat(4, 32, "middle", "bfloat16", e2m1=True), 2),
        (GroupFormat(4, 16, "middle", "float32", e2m1=True), 1),
    ],
    ids=repr,
)
def test_a_tile_is_read_from_front_to_end(format: GroupFormat, block: int, groups: int) -> None:
    packing = Packing(format)
    assert packing.block == block
    parts: list[tuple[int, int]] = []
    for first in range(0, groups, block):
        those = range(first, min(first + block, groups))
        parts += [(packing.entry_byte(t, g), packing.scale_bytes) for t in range(format.entries) for g in those]
        parts += [(packing.level_byte(g), packing.level_bytes) for g in those]
    assert all(at >= before + size for (before, size), (at, _) in itertools.pairwise(parts))
    assert all(packing.level_byte(group) % CACHE_LINE == 0 for group in range(groups))
    size = packing.tile_bytes(groups * format.group)
    assert parts[0][0] == 0
    assert sum(parts[-1]) == size
    assert size - sum(taken for _, taken in parts) < CACHE_LINE  # of a last block with fewer groups
