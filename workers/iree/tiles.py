"""Tile sizes of the packed matrices on one CPU, and how a weight is packed into them.

A packed right-hand side [N/n, K/k, n, k] is what `linalg.mmt4d` multiplies by; the sizes are those of IREE's
microkernels (runtime/src/iree/builtins/ukernel/arch), so that the weights need no packing when they are used. Every
microkernel adds along K one step after the other into each output, whatever the number of rows: this is what makes a
row's result independent of its batch.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Tiles:
    """Inner tile sizes: `n` outputs by `k` inputs of a right-hand side, up to `max_rows` rows of a left-hand side."""

    n: int
    k: int
    max_rows: int

    def rows(self, count: int) -> int:
        """The row tile for `count` rows: the smallest power of two that holds them, at most `max_rows`."""
        tile = 1
        while tile < min(count, self.max_rows):
            tile *= 2
        return tile


def tiles_for(machine: str, features: AbstractSet[str], dtype: str) -> Tiles:
    """The microkernels' tiles for operands of `dtype` on a CPU with `features` (LLVM's names)."""
    if machine == "x86_64" and "avx512f" in features:
        return Tiles(16, 2 if dtype == "bfloat16" and "avx512bf16" in features else 1, 16)
    if machine == "aarch64" and dtype == "bfloat16" and "bf16" in features:
        return Tiles(8, 4, 8)
    return Tiles(8, 1, 8)


def pack(matrix: NDArray[Any], tiles: Tiles) -> NDArray[Any]:
    """[N, K] -> [ceil(N / n), K / k, n, k]; missing rows are zero. K must be a multiple of k."""
    rows, columns = matrix.shape
    if rows % tiles.n:
        matrix = np.concatenate([matrix, np.zeros((-rows % tiles.n, columns), matrix.dtype)])
    blocks = matrix.reshape(-1, tiles.n, columns // tiles.k, tiles.k)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))
