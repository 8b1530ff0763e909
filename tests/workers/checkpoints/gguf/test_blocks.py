"""Values of every tensor type, beside those of llama.cpp's own package."""

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.gguf.gguf_files import make_gguf
from workers.checkpoints.checkpoint import CheckpointError, open_weights
from workers.checkpoints.gguf.blocks import PLAIN, plain_values, quantized_matrix
from workers.checkpoints.gguf.gguf_weights import GgufWeights
from workers.checkpoints.gguf.tensor_types import EVEN, TYPES, TensorType
from workers.checkpoints.memory_estimate import estimate_weights

OUTPUTS, INPUTS = 5, 512
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,), "IQ1_M": (), "MXFP4": ()}
"""Bytes of a block at which a half is, for types that do not begin with one or two."""
QUANTIZED = [kind for kind in TYPES.values() if kind.name not in PLAIN]
SIMPLE = [kind for kind in QUANTIZED if kind.name in ("Q8_0", "Q4_0", "Q5_0")]
"""Types whose weights are one product: no sum is rounded in another order."""


def random_blocks(kind: TensorType) -> NDArray[np.uint8]:
    """Random bytes with scales that are finite and of both signs."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (OUTPUTS * INPUTS // kind.block, kind.size), np.uint8)
    places = HALVES.get(kind.name, (0, 2) if kind.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else (0,))
    for at in places:
        scales = (rng.standard_normal(len(blocks)) / 100).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind.name == "IQ1_M":  # the bits of its half are the high ones of four others
        half = np.float16(0.01).view(np.uint16)
        for part in range(4):
            high = blocks[:, 49 + 2 * part] & 15
            blocks[:, 49 + 2 * part] = high | (int(half) >> 4 * part & 15) << 4
    if kind.name == "MXFP4":
        blocks[:, 0] = rng.integers(118, 130, len(blocks))
    return blocks


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_a_matrix_has_the_weights_of_its_blocks(kind: TensorType) -> None:
    blocks, shape = random_blocks(kind), (OUTPUTS, INPUTS)
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind.name]).reshape(shape)
    assert np.isfinite(expected).all()
    assert expected.std() > 0
    np.testing.assert_array_equal(plain_values(blocks, kind, shape), expected)
    assert kind.format is not None
    for format in dict.fromkeys((kind.format, EVEN)):
        matrix = quantized_matrix(blocks, kind, shape, format)
        assert matrix.format == format
        assert (matrix.levels <= (2 * format.middle if format.e2m1 else (1 << format.bits) - 1)).all()
        found = matrix.dequantize()
        if kind.exact:
            # Sums of a product and a bias are rounded in another order.
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)
            continue
        groups = expected.reshape(OUTPUTS, -1, 32)
        spread = groups.max(-1, keepdims=True) - groups.min(-1, keepdims=True)
        assert (np.abs(found.reshape(groups.shape) - groups) <= spread * (0.5 / 255 + 1e-6)).all()


@pytest.mark.parametrize("kind", SIMPLE, ids=lambda kind: kind.name)
def test_types_of_simple_blocks_lose_no_bit(kind: TensorType) -> None:
    assert kind.format is not None
    blocks = random_blocks(kind)
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind.name]).reshape(OUTPUTS, INPUTS)
    found = quantized_matrix(blocks, kind, (OUTPUTS, INPUTS), kind.format).dequantize()
    np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("plain") / "model")


def mixed(name: str) -> Type:
    """The values of a layer in another type, as llama-quantize leaves them."""
    return Type.Q8_0 if "attn_v" in name else Type.Q4_1 if "blk" in name else Type.Q5_0


def rows(weights: GgufWeights, names: list[str]) -> Iterator[NDArray[np.float32]]:
    for name in names:
        matrix = weights.take_quantized(name, weights.shape(name)).dequantize()
        np.testing.assert_allclose(matrix, weights[name], rtol=2e-6, atol=1e-7)
        yield matrix


def test_a_stack_of_different_types_has_formats_that_go_together(checkpoint: Path, tmp_path: Path) -> None:
    weights = open_weights(make_gguf(checkpoint, tmp_path / "model.gguf", mixed))
    assert isinstance(weights, GgufWeights)
    attention = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    assert {weights.format(name) for name in attention} == {EVEN}
    assert weights.format("model.layers.0.mlp.down_proj.weight") == TYPES[3].format
    assert weights.format("model.layers.0.input_layernorm.weight") is None
    assert sum(map(len, rows(weights, [*attention, "model.embed_tokens.weight"]))) == 64 + 32 + 32 + 512
    assert weights.widths() == "int4+int5+int8"
    assert weights.inexact() == []
    assert list(weights.types()) == ["Q4_1", "Q5_0", "Q8_0", "F32"]
    with pytest.raises(CheckpointError, match=r"has the shape \(64, 64\), config\.json says \(64, 32\)"):
        weights.take_quantized(attention[0], (64, 32))
    with pytest.raises(KeyError):
        weights.take_quantized("model.norm.weight", (64,))


def test_quantized_anew(checkpoint: Path, tmp_path: Path) -> None:
    """Every matrix is plain, so that a backend quantizes it."""
    file = make_gguf(checkpoint, tmp_path / "model.gguf", Type.Q8_0)
    weights = open_weights(file, "int4")
    assert not any(weights.format(name) for name in weights)
    sizes = {kind: estimate_weights(file, dtype="auto", quantize=kind) for kind in ("none", "int8", "int4")}
    assert sizes["int4"] < sizes["none"] == sizes["int8"]


def test_a_scale_of_mxfp4_that_is_no_number_is_refused_by_name(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", "gpt_oss", layers=1, tied=False)
    file = make_gguf(path, tmp_path / "model.gguf", lambda name: Type.MXFP4 if "_exps.weight" in name else Type.F32)
    weights = open_weights(file)
    name = "model.layers.0.mlp.experts.5.down_proj.weight"
    np.testing.assert_array_equal(weights.take_quantized(name, (64, 128)).dequantize(), weights[name])
    data = bytearray(file.read_bytes())
    source = weights._sources[name]  # type: ignore[attr-defined]
    data[data.index(weights._blocks(source).tobytes())] = 255  # type: ignore[attr-defined]
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"ffn_down_exps.weight: bad quantized tensor: has a scale that is NaN"):
        open_weights(file).take_quantized(name, (64, 128))
