"""The layout of packed matrices."""

import numpy as np

from workers.iree.kernels.matmul.packing import pack_matrix


def test_pack() -> None:
    packed = pack_matrix(np.arange(34).reshape(17, 2), 2)
    assert packed.shape == (2, 1, 16, 2)
    assert packed[0, 0, 3].tolist() == [6, 7]
    assert packed[1, 0].tolist() == [[32, 33], *[[0, 0]] * 15]
