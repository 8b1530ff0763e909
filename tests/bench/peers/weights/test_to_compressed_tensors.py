"""compressed-tensors checkpoints: unpacked as the format says, they are the checkpoint again."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from bench.peers.weights.to_compressed_tensors import GROUP, convert
from tests.checkpoints import make_checkpoint
from workers.checkpoints.checkpoint import open_weights

DTYPES = {"I8": np.int8, "I32": np.int32, "I64": np.int64, "BF16": ml_dtypes.bfloat16}
NAME = "model.layers.1.mlp.down_proj."


def converted(tmp_path: Path, precision: str) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], Any]:
    """Tensors before and after, and the new quantization config."""
    widths: dict[str, Any] = {"hidden": GROUP, "ffn": 2 * GROUP, "heads": 2, "head_dim": GROUP // 2}
    path = make_checkpoint(tmp_path / "model", "qwen2", dtype="bfloat16", **widths)
    convert(path, tmp_path / "out", precision)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    return dict(open_weights(path)), read(tmp_path / "out" / "model.safetensors"), config["quantization_config"]


def read(file: Path) -> dict[str, NDArray[Any]]:
    """Baton itself does not load this format."""
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    return {
        name: np.frombuffer(content[begin:][slice(*fields["data_offsets"])], DTYPES[fields["dtype"]]).reshape(
            fields["shape"]
        )
        for name, fields in header.items()
        if name != "__metadata__"
    }


def unpack(packed: NDArray[Any]) -> NDArray[Any]:
    """int32 to eight integers of 4 bits each, lowest bits first, stored with an offset of 8."""
    nibbles = packed.view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
    return nibbles.reshape(packed.shape[0], -1).astype(np.int32) - 8


def test_int8_weights_come_back(tmp_path: Path) -> None:
    before, after, config = converted(tmp_path, "int8")
    scales = after[f"{NAME}weight_scale"].astype(np.float32)
    weight = before[f"{NAME}weight"].astype(np.float32)
    assert scales.shape == (weight.shape[0], 1)
    assert np.abs(after[f"{NAME}weight"] * scales - weight).max() <= 0.51 * scales.max()
    assert config["format"] == "int-quantized"
    assert config["config_groups"]["group_0"]["input_activations"]["dynamic"]


def test_int4_weights_come_back(tmp_path: Path) -> None:
    before, after, config = converted(tmp_path, "int4")
    weight = before[f"{NAME}weight"].astype(np.float32)
    scales = after[f"{NAME}weight_scale"].astype(np.float32)
    assert scales.shape == (weight.shape[0], weight.shape[1] // GROUP)
    assert after[f"{NAME}weight_shape"].tolist() == list(weight.shape)
    found = unpack(after[f"{NAME}weight_packed"]) * scales.repeat(GROUP, axis=1)
    assert np.abs(found - weight).max() <= 0.51 * scales.max()
    assert config["config_groups"]["group_0"]["weights"]["group_size"] == GROUP


def test_norms_biases_and_the_embedding_stay(tmp_path: Path) -> None:
    before, after, _ = converted(tmp_path, "int4")
    for name in ("model.norm.weight", "model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias"):
        assert np.array_equal(before[name], after[name])


def test_a_width_without_whole_groups_is_refused(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", "qwen2", dtype="bfloat16", hidden=GROUP // 2)
    with pytest.raises(ValueError, match=f"no multiple of {GROUP}"):
        convert(path, tmp_path / "out", "int4")
    assert not (tmp_path / "out").exists()
