"""The kernels of latent attention against numpy and plain StableHLO, and the same bits whatever rows stand beside."""

from pathlib import Path

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.iree.kernels.running import ARITHMETICS, NUMPY, TOLERANCE, Run, floats, random, rounded, words
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.kernels.ir.arithmetic import Arithmetic, FloatFma, row_stride
from workers.iree.kernels.latent.head_linear import HeadLinear, head_linear
from workers.iree.kernels.latent.latent_rows import FirstColumns, LatentRows, first_columns, latent_rows
from workers.iree.kernels.matmul.packing import pack_matrix
from workers.iree.model.plain_ops import PlainOps

HEADS = 3


SIZES = [pytest.param(48, False, id="three-tiles"), pytest.param(16, True, id="packed", marks=pytest.mark.exhaustive)]
FURTHER = [pytest.param(*each.values, id=each.id, marks=[*each.marks, pytest.mark.exhaustive]) for each in ARITHMETICS]


@pytest.mark.parametrize("arithmetic", [ARITHMETICS[0], *FURTHER[1:]])
@pytest.mark.parametrize(("outputs", "packed"), SIZES)
def test_head_linear(run: Run, arithmetic: Arithmetic, outputs: int, packed: bool) -> None:
    """Three tiles of a head are no multiple of the tiles that are summed at once; one tile is fewer."""
    rows, inputs = 11, 32
    x, w = random(rows, HEADS * inputs), random(HEADS, outputs, inputs, seed=1)
    tiles = pack_matrix(w.reshape(-1, inputs).astype(NUMPY[arithmetic.element]), arithmetic.k)
    left = words(x, arithmetic, row_stride(HEADS * inputs, arithmetic) - HEADS * inputs // arithmetic.per_word)
    kind = HeadLinear(rows, HEADS, inputs, outputs, arithmetic, packed, threads=2)
    both = (left, tiles.reshape(len(tiles), -1))
    (out,) = run(head_linear("head_linear", kind, live=True), *both, np.array([7], np.int32))
    (alone,) = run(
        head_linear("head_linear", HeadLinear(1, HEADS, inputs, outputs, arithmetic, packed)), left[6:7], both[1]
    )
    expected = np.einsum("rhi,hoi->rho", rounded(x, arithmetic).reshape(rows, HEADS, -1), rounded(w, arithmetic))
    if packed:
        np.testing.assert_array_equal(alone[0, :24], out[6, :24])
        out = floats(out, HEADS * outputs, arithmetic)
    else:
        np.testing.assert_array_equal(alone[0], out[6])
    np.testing.assert_allclose(out[:7], expected.reshape(rows, -1)[:7], atol=TOLERANCE[arithmetic.element] * 20)


@pytest.mark.parametrize("normed", [False, True])
def test_first_columns(run: Run, normed: bool) -> None:
    x, weight = random(9, 80), random(48, seed=2)
    kind = FirstColumns(9, 80, 48, FloatFma("f32", 16), 1e-2 if normed else None)
    operands = (x, *((weight,) if normed else ()), np.array([5], np.int32))
    (out,) = run(first_columns("first_columns", kind, live=True), *operands)
    expected = PlainOps("float32").first_columns(x, 48, weight if normed else None, 1e-2)
    np.testing.assert_allclose(out.view(np.float32)[:5, :48], expected[:5], rtol=1e-5, atol=1e-6)


def test_latent_rows(run: Run, tmp_path: Path) -> None:
    config = ModelConfig.from_dir(make_checkpoint(tmp_path, "minicpm3", fields={"q_lora_rank": None}))
    sizes, heads = config.latent, config.heads
    assert sizes is not None
    projected = random(6, heads * sizes.query + sizes.rank + sizes.rotated)
    multiplied, weight = random(6, heads * sizes.rank, seed=1), random(sizes.rank, seed=2)
    kind = LatentRows(6, heads, sizes, projected.shape[1], projected.shape[1])
    (out,) = run(latent_rows("latent_rows", kind), projected, projected, multiplied, weight)
    expected = PlainOps("float32").latent_rows(projected, projected, multiplied, weight, config)
    assert kind.width == expected.shape[1]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
