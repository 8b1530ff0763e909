"""Padding of widths: which models have it, where the zeros are, and that nothing else changes."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.families import FAMILIES
from tests.families.uneven import UNEVEN
from workers.checkpoints.architectures.tensors import tensors
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.iree.kernels.ir.arithmetic import Bf16Dot
from workers.iree.kernels.matmul.packing import pack_matrix
from workers.iree.model.stored_parameters import Stored, pack_parameter, stored_parameters
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.width_padding import PaddedAxis, WidthPadding
from workers.precision import Quantize


def stored(path: Path, kind: Quantize = "none") -> tuple[dict[str, Stored], TiledOps]:
    config = ModelConfig.from_dir(path)
    ops = TiledOps("bfloat16", Bf16Dot(), padding=WidthPadding.of(config))
    return {each.name: each for each in stored_parameters(config, ops, open_weights(path), kind)}, ops


def test_an_axis_is_padded_block_by_block() -> None:
    axis = PaddedAxis(((1, 2), (1, 2), (1, 1)))
    values = np.arange(1, 13).reshape(2, 6)
    assert axis.pad(values, 1).tolist() == [[1, 0, 2, 0, 3, 4, 0, 5, 0, 6], [7, 0, 8, 0, 9, 10, 0, 11, 0, 12]]
    assert axis.pad(values.T, 0).tolist() == axis.pad(values, 1).T.tolist()
    assert (axis.size, axis.padded, axis.total(6)) == (3, 5, 10)


def test_an_axis_of_other_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="an axis of 7 is not made of blocks of 3"):
        PaddedAxis.whole(3).total(7)


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_vectors_are_not_padded(tmp_path: Path, family: str) -> None:
    assert WidthPadding.of(ModelConfig.from_dir(make_checkpoint(tmp_path, family, tied=False))) is None


@pytest.mark.parametrize(
    ("lanes", "share", "parts"),
    [
        (20, 1.0, ((10, 16), (10, 16), (0, 0))),
        (36, 1.0, ((18, 24), (18, 24), (0, 0))),
        (100, 1.0, ((50, 56), (50, 56), (0, 0))),
        (22, 1.0, ((11, 16), (11, 16), (0, 0))),
        (6, 1.0, ((3, 8), (3, 8), (0, 0))),
        (20, 0.5, ((5, 8), (5, 8), (10, 16))),
        (16, 0.625, ((5, 8), (5, 8), (6, 16))),
        (80, 0.25, None),
        (96, 0.75, None),
        (32, 0.625, ((10, 10), (10, 10), (12, 12))),
    ],
)
def test_heads_keep_the_pairs_that_are_rotated(
    tmp_path: Path, lanes: int, share: float, parts: tuple[tuple[int, int], ...] | None
) -> None:
    """Each half of the rotated lanes is padded by itself, to whole vectors where that makes no head larger."""
    fields = {"partial_rotary_factor": share}
    path = make_checkpoint(tmp_path, "phi3", tied=False, head_dim=lanes, hidden=100 if parts else 64, fields=fields)
    padding = WidthPadding.of(ModelConfig.from_dir(path))
    assert (padding.head.parts if padding else None) == parts


@pytest.mark.parametrize("case", UNEVEN)
def test_every_tensor_gets_the_shape_that_the_padded_model_has(tmp_path: Path, case: str) -> None:
    config = ModelConfig.from_dir(make_checkpoint(tmp_path, **UNEVEN[case]))
    padding = WidthPadding.of(config)
    assert padding is not None
    padded = padding.config(config)
    widths: list[Any] = [padded.hidden_size, padded.ffn, padded.head_dim]
    assert all(width % 16 == 0 for width in widths)
    for before, after in zip(tensors(config), tensors(padded), strict=True):
        axes = padding.axes(before.name, config.plan)
        for (name, shape), (_, expected) in zip(before.sources, after.sources, strict=True):
            if before.flat:
                shape, expected = (math.prod(shape),), (math.prod(expected),)
            sizes = [size if axis is None else axis.total(size) for size, axis in zip(shape, axes, strict=True)]
            assert (name, tuple(sizes)) == (name, expected)


def test_zeros_are_added_and_no_weight_changes(tmp_path: Path) -> None:
    made, ops = stored(make_checkpoint(tmp_path, **UNEVEN["llama-uneven"]))
    weights = open_weights(tmp_path)
    qkv, down = (pack_parameter(made[f"0.{name}"], weights, ops) for name in ("qkv", "down"))
    assert (qkv.shape, down.shape) == ((15 * 32 // 16, 112 // 2, 16, 2), (112 // 16, 208 // 2, 16, 2))
    layer = "model.layers.0"
    projections = np.concatenate([weights[f"{layer}.self_attn.{name}_proj.weight"] for name in "qkv"])
    expected = np.zeros((15, 2, 16, 112), qkv.dtype)
    expected[:, :, :10, :100] = projections.reshape(15, 2, 10, 100).astype(qkv.dtype)
    np.testing.assert_array_equal(qkv, pack_matrix(expected.reshape(480, 112), 2))
    expected = np.zeros((112, 208), down.dtype)
    expected[:100, :200] = weights[f"{layer}.mlp.down_proj.weight"].astype(down.dtype)
    np.testing.assert_array_equal(down, pack_matrix(expected, 2))


def test_quantized_matrices_keep_their_levels_unless_their_inputs_are_padded(tmp_path: Path) -> None:
    made, ops = stored(make_checkpoint(tmp_path, **UNEVEN["granite-uneven-8-bit"]))
    packed = {name for name, each in made.items() if each.packing is not None}
    assert packed == {"embedding", *(f"{layer}.{name}" for layer in (0, 1) for name in ("qkv", "gate_up", "down"))}
    weights, qkv = open_weights(tmp_path), made["0.qkv"]
    assert qkv.packing is not None
    assert pack_parameter(qkv, weights, ops).nbytes == qkv.nbytes == 16 * 32 // 16 * qkv.packing.tile_bytes(160)


def test_padded_matrices_are_quantized(tmp_path: Path) -> None:
    """In groups of the padded inputs, where those are whole groups."""
    made, ops = stored(make_checkpoint(tmp_path, **UNEVEN["llama-uneven"]), "int8")
    packed = {name: each for name, each in made.items() if each.packing is not None}
    assert set(packed) == {f"{layer}.o" for layer in (0, 1)}  # 160 inputs; 112 and 208 are no multiples of 32
    weights = open_weights(tmp_path)
    assert all(pack_parameter(each, weights, ops).nbytes == each.nbytes for each in packed.values())
