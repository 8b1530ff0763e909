"""A multimodal model saved by transformers: its language model here, against the whole model with text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.reference.conftest import load_runner
from tests.reference.test_families import CONTEXT, TOKENS, TOLERANCE
from workers.engine.runner import Chunk

pytestmark = pytest.mark.reference

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "vocab_size": 512,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 9,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}
GEMMA4 = {
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 512,
    "num_kv_shared_layers": 1,
    "layer_types": ["sliding_attention", "full_attention"] * 3 + ["full_attention"],
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("layout", ["published", "in memory"])
def test_gemma3(torch: Any, tmp_path: Path, layout: str) -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    torch.manual_seed(0)
    images = {"vision_config": VISION | {"image_size": 28, "patch_size": 14}, "mm_tokens_per_image": 4}
    tokens = {"boi_token_index": 509, "eoi_token_index": 510, "image_token_index": 511}
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=TEXT, **images, **tokens)).eval()
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            parameter.normal_(0.0, 0.1 if parameter.ndim == 1 else 2 / parameter.shape[1] ** 0.5)
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    model.save_pretrained(tmp_path / "model")
    if layout == "in memory":
        tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        save_file(tensors, tmp_path / "model" / "model.safetensors")
    runner = load_runner("mlx", tmp_path / "model", tmp_path, context=CONTEXT)
    assert expected.std() > 0.3
    np.testing.assert_allclose(runner.logits(Chunk(0, TOKENS, 0, 0)), expected, atol=TOLERANCE)
    runner.close()


@pytest.mark.parametrize("layout", ["published", "mlx-lm"])
def test_gemma4(torch: Any, tmp_path: Path, layout: str) -> None:
    """transformers saves the shapes of layers in `per_layer_config`."""
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration

    torch.manual_seed(0)
    text = {name: value for name, value in TEXT.items() if name != "rope_scaling"} | GEMMA4
    model = Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, vision_config=None)).eval()
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            parameter.normal_(0.0, 0.3 if parameter.ndim == 1 else 1.5 / parameter.shape[-1] ** 0.5)
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    model.save_pretrained(tmp_path / "model")
    if layout == "mlx-lm":
        tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        tensors = {
            name.replace("model.language_model.", "language_model.model."): each for name, each in tensors.items()
        }
        around = {"vision_tower.a": np.zeros(1, np.float32), "embed_audio.b": np.zeros(1, np.float32)}
        save_file(tensors | around, tmp_path / "model" / "model.safetensors")
    runner = load_runner("mlx", tmp_path / "model", tmp_path, context=CONTEXT)
    assert expected.std() > 0.3
    np.testing.assert_allclose(runner.logits(Chunk(0, TOKENS, 0, 0)), expected, atol=TOLERANCE)
    runner.close()
