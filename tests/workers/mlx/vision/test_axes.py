"""Rotary positions in three axes on MLX."""

import mlx.core as mx
import numpy as np
import pytest

from workers.checkpoints.architectures.rope import Rope
from workers.mlx.rotary import Rotary, axes_of_angles


def test_axes_of_angles() -> None:
    assert axes_of_angles((2, 3, 1), interleaved=False) == [0, 0, 1, 1, 1, 2]
    assert axes_of_angles((4, 2, 2), interleaved=True) == [0, 1, 2, 0, 1, 2, 0, 0]
    assert axes_of_angles((3, 3, 2), interleaved=True) == [0, 1, 2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize("neighbours", [False, True])
def test_each_angle_turns_by_the_position_of_its_axis(neighbours: bool) -> None:
    rope, axes = Rope(100.0, 12), [0, 1, 2, 0, 1, 0]
    rotary = Rotary(rope, 64, interleaved=neighbours)
    rotary.divide(axes)
    x = np.random.default_rng(0).standard_normal((4, 2, 1, 16)).astype(np.float32)
    positions = np.array([[3, 5, 5, 9], [3, 5, 6, 9], [3, 5, 8, 2]], np.int32)
    angles = positions[axes].T * rope.frequencies(64)[0]
    cosines, sines = np.cos(angles)[:, None, None], np.sin(angles)[:, None, None]
    first, second = (x[..., 0:12:2], x[..., 1:12:2]) if neighbours else (x[..., :6], x[..., 6:12])
    expected = x.copy()
    turned = first * cosines - second * sines, second * cosines + first * sines
    if neighbours:
        expected[..., 0:12:2], expected[..., 1:12:2] = turned
    else:
        expected[..., :6], expected[..., 6:12] = turned
    rotated = np.array(rotary(mx.array(x), mx.array(positions)))
    np.testing.assert_allclose(rotated, expected, atol=1e-5)
    plain = np.array(rotary(mx.array(x), mx.array(positions[0])))
    np.testing.assert_array_equal(rotated[:2], plain[:2])


def test_axes_that_do_not_fit_are_refused() -> None:
    rotary = Rotary(Rope(100.0, 12), 64)
    with pytest.raises(ValueError, match="axes: 5 for 6 angles"):
        rotary.divide([0] * 5)
    with pytest.raises(ValueError, match="axes: the model has positions in one axis"):
        rotary(mx.zeros((1, 1, 1, 12)), mx.zeros((3, 1), mx.int32))
