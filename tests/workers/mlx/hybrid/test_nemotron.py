"""The layouts of Nemotron-H's mixtures of experts, and their types and quantization on MLX."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from tests.checkpoints import make_checkpoint, stack_experts, write_safetensors
from tests.reference.conftest import dequantize
from tests.reference.layers.mamba_layers import NEMOTRON_LATENTS
from tests.workers.checkpoints.gguf.gguf_files import make_gguf
from tests.workers.mlx.conftest import Load
from workers.checkpoints.checkpoint import open_weights
from workers.engine.runner import Chunk

CHUNK = Chunk(0, tuple(range(3, 15)), 0, 0)
WIDE: dict[str, Any] = {"moe_latent_size": 64, "moe_intermediate_size": 64, "moe_shared_expert_intermediate_size": 64}
"""Widths of whole groups."""


def stacked(name: str) -> str:
    """Return transformers' name of a stack of mlx-lm's."""
    for part, original in (("fc1", "up_proj"), ("fc2", "down_proj")):
        name = name.replace(f".switch_mlp.{part}.weight", f".experts.{original}")
    return name


def test_layouts_give_the_same_logits(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "published", "nemotron_h", layers=4, fields=NEMOTRON_LATENTS)
    expected, converted = load(path).logits(CHUNK), stack_experts(dict(open_weights(path)))
    assert any(name.endswith(".mixer.switch_mlp.fc1.weight") for name in converted)
    for layout in ("mlx-lm", "transformers"):
        copy = shutil.copytree(path, tmp_path / layout)
        named = {name if layout == "mlx-lm" else stacked(name): tensor for name, tensor in converted.items()}
        write_safetensors(copy / "model.safetensors", named)
        np.testing.assert_array_equal(load(copy).logits(CHUNK), expected)
        original, found = open_weights(path), open_weights(copy)
        assert set(found) == set(original)
        for name in original:
            np.testing.assert_array_equal(found[name], original[name], err_msg=name)


def test_biases_of_routers_stay_in_float32(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", "nemotron_h", layers=4, fields=NEMOTRON_LATENTS)
    mixture = load(path, dtype="bfloat16")._forward.model.model.layers[2].mixer
    stored: NDArray[Any] = open_weights(path)["backbone.layers.2.mixer.gate.e_score_correction_bias"]
    np.testing.assert_array_equal(np.array(mixture.score_bias), stored.astype(np.float32))


def test_experts_are_quantized(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", "nemotron_h", layers=4, fields=NEMOTRON_LATENTS | WIDE)
    exact, quantized = load(path).logits(CHUNK), load(path, quantize="int8")
    mixture = quantized._forward.model.model.layers[2].mixer
    assert all("scales" in module for module in (mixture.switch_mlp.fc1, mixture.switch_mlp.fc2))
    assert "scales" not in mixture.gate
    error = np.abs(quantized.logits(CHUNK) - exact).max() / np.abs(exact).max()
    assert 0 < error < 0.05


def test_quantized_experts_are_those_of_the_checkpoint(load: Load, tmp_path: Path) -> None:
    fields = NEMOTRON_LATENTS | WIDE
    path = make_checkpoint(tmp_path / "4-bit", "nemotron_h", layers=4, fields=fields, quantized_bits=4)
    plain = dequantize(path, tmp_path / "plain")
    np.testing.assert_allclose(load(path).logits(CHUNK), load(plain).logits(CHUNK), atol=2e-4)


def test_experts_of_a_quantized_file_are_computed_with_as_they_are(load: Load, tmp_path: Path) -> None:
    fields = NEMOTRON_LATENTS | WIDE | {"hybrid_override_pattern": "M*E"}
    path = make_checkpoint(tmp_path / "model", "nemotron_h", layers=3, fields=fields, tied=False)
    file = make_gguf(path, tmp_path / "model.gguf", Type.Q8_0)
    write_safetensors(path / "model.safetensors", dict(open_weights(file)))
    runner = load(file, dtype="float32")
    assert runner._forward.model.model.layers[2].mixer.switch_mlp.fc1.bits == 8
    np.testing.assert_allclose(runner.logits(CHUNK), load(path).logits(CHUNK), atol=2e-4)
