"""Levels, scales and zeros: quantizing, and unpacking the formats of MLX, GPTQ and AWQ."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.checkpoints import quantize as mlx_quantize
from tests.quantized import awq_parts, gptq_parts, quantize_with_zeros
from workers.checkpoints.quantized_matrix import (
    GroupFormat,
    Quantized,
    from_awq,
    from_gptq,
    from_mlx,
    quantize,
    unpack_words,
)

WEIGHTS = np.random.default_rng(0).standard_normal((24, 128)).astype(np.float32)
INT8 = GroupFormat(8, 64, "middle", "float16")
INT4 = GroupFormat(4, 64, "bias", "float16")


@pytest.mark.parametrize("format", [INT8, INT4, GroupFormat(4, 32, "middle", "float32")], ids=str)
def test_no_weight_is_further_off_than_half_a_step(format: GroupFormat) -> None:
    made = quantize(WEIGHTS, format)
    step = np.repeat(made.scales.astype(np.float32), format.group, axis=1)
    slack = 1.01 if format.scales == "float32" else 1.1  # scales are rounded
    assert (np.abs(made.dequantize() - WEIGHTS) <= slack * step / 2).all()
    assert made.levels.max() < 1 << format.bits


def test_more_bits_are_nearer() -> None:
    errors = [np.abs(quantize(WEIGHTS, format).dequantize() - WEIGHTS).mean() for format in (INT8, INT4)]
    assert errors[0] < errors[1] / 10


@pytest.mark.parametrize("format", [INT8, INT4], ids=str)
def test_groups_of_one_value(format: GroupFormat) -> None:
    for value in (0.0, 1.0, -3.0):
        made = quantize(np.full((2, 64), value, np.float32), format).dequantize()
        np.testing.assert_allclose(made, value, rtol=1e-3)


def test_bits_per_weight() -> None:
    assert (INT8.bits_per_weight, INT4.bits_per_weight) == (8.25, 4.5)


def test_shapes_must_fit() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Quantized(INT8, np.zeros((2, 64), np.uint8), np.zeros((2, 2), np.float16), None)
    with pytest.raises(ValueError, match="do not fit"):
        Quantized(INT4, np.zeros((2, 64), np.uint8), np.zeros((2, 1), np.float16), np.zeros((1, 1), np.float16))
    with pytest.raises(ValueError, match="do not fit"):
        Quantized(INT8, np.zeros((2, 65), np.uint8), np.zeros((2, 1), np.float16), None)


def test_words_by_hand() -> None:
    words = np.array([[0x76543210, 0xFEDCBA98]], np.uint32)
    np.testing.assert_array_equal(unpack_words(words, 4), [range(16)])
    fields = sum(value % 8 << 3 * i for i, value in enumerate(range(32)))  # 3 bits lie across words
    words = np.array([[fields >> 32 * i & 0xFFFFFFFF for i in range(3)]], np.uint32)
    np.testing.assert_array_equal(unpack_words(words, 3), [[value % 8 for value in range(32)]])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_mlx(dtype: Any) -> None:
    words, scales, biases = mlx_quantize(WEIGHTS.astype(dtype), 4, 32)
    taken = from_mlx(words, scales, biases, GroupFormat(4, 32, "bias", "float16"))
    assert np.abs(taken.dequantize() - WEIGHTS).max() < 0.2


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_gptq(bits: int, symmetric: bool) -> None:
    made = quantize_with_zeros(WEIGHTS, bits, 32, symmetric=symmetric)
    for offset in (0, 1):
        parts = gptq_parts(made, offset)
        taken = from_gptq(parts["qweight"], parts["scales"], parts["qzeros"], made.format, zero_offset=offset)
        np.testing.assert_array_equal(taken.levels, made.levels)
        np.testing.assert_array_equal(taken.dequantize(), made.dequantize())


@pytest.mark.parametrize("symmetric", [False, True])
def test_awq(symmetric: bool) -> None:
    made = quantize_with_zeros(WEIGHTS, 4, 64, symmetric=symmetric)
    parts = awq_parts(made)
    taken = from_awq(parts["qweight"], parts["scales"], parts["qzeros"], made.format)
    np.testing.assert_array_equal(taken.levels, made.levels)
    np.testing.assert_array_equal(taken.dequantize(), made.dequantize())


def test_symmetric_is_checked() -> None:
    parts = gptq_parts(quantize_with_zeros(WEIGHTS + 1, 4, 32, symmetric=False))
    format = GroupFormat(4, 32, "middle", "float16")
    with pytest.raises(ValueError, match="zeros are not all 8"):
        from_gptq(parts["qweight"], parts["scales"], parts["qzeros"], format, zero_offset=1)
