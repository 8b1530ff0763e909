"""Parameters of InternVL's tower that are made of two tensors: sizes that do not belong together are refused."""

import numpy as np
import pytest

from workers.vision.families.internvl import scaled, without_bias


def test_a_class_token_and_a_bias_have_one_size() -> None:
    assert without_bias(np.full((1, 1, 3), 5.0), np.arange(3.0)).tolist() == [5, 4, 3]
    with pytest.raises(ValueError, match="a class token of 1 numbers beside a bias of 3"):
        without_bias(np.zeros((1, 1, 1)), np.zeros(3))


@pytest.mark.parametrize("shape", [(2, 3), (2,)])
def test_each_output_has_a_factor(shape: tuple[int, ...]) -> None:
    tensor = np.ones(shape, np.float32)
    assert scaled(tensor, np.array([2.0, 3.0])).sum(axis=tuple(range(1, len(shape)))).tolist() in ([2, 3], [6, 9])
    for factors in (np.ones(1), np.ones((2, 2)), np.ones(3)):
        with pytest.raises(ValueError, match="factors of"):
            scaled(tensor, factors)
