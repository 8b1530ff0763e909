"""Tiles by CPU and type, and packing."""

import numpy as np
import pytest

from workers.iree.tiles import Tiles, pack, tiles_for


@pytest.mark.parametrize(
    ("machine", "features", "dtype", "tiles"),
    [
        ("x86_64", {"avx512f", "avx512bf16"}, "bfloat16", Tiles(16, 2, 16)),
        ("x86_64", {"avx512f"}, "bfloat16", Tiles(16, 1, 16)),
        ("x86_64", {"avx512f", "avx512bf16"}, "float32", Tiles(16, 1, 16)),
        ("x86_64", {"avx2"}, "float32", Tiles(8, 1, 8)),
        ("aarch64", {"bf16"}, "bfloat16", Tiles(8, 4, 8)),
        ("aarch64", set(), "float32", Tiles(8, 1, 8)),
        ("riscv64", set(), "float16", Tiles(8, 1, 8)),
    ],
)
def test_tiles_by_cpu(machine: str, features: set[str], dtype: str, tiles: Tiles) -> None:
    assert tiles_for(machine, features, dtype) == tiles


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (16, 16), (17, 16), (512, 16)])
def test_row_tiles(count: int, rows: int) -> None:
    assert Tiles(16, 2, 16).rows(count) == rows


def test_pack_by_hand() -> None:
    packed = pack(np.arange(12).reshape(3, 4), Tiles(2, 2, 8))
    assert packed.shape == (2, 2, 2, 2)
    np.testing.assert_array_equal(packed[0, 0], [[0, 1], [4, 5]])
    np.testing.assert_array_equal(packed[0, 1], [[2, 3], [6, 7]])
    np.testing.assert_array_equal(packed[1, 0], [[8, 9], [0, 0]])  # the missing fourth row
