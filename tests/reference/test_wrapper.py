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

TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GEMMA = TEXT | {
    "num_hidden_layers": 7,
    "sliding_window": 9,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
}
MINISTRAL = TEXT | {
    "model_type": "ministral3",
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 64,
        "max_position_embeddings": 1024,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
MISTRAL = TEXT | {"model_type": "mistral", "tie_word_embeddings": False, "sliding_window": None}
QWEN = TEXT | {"rope_theta": 1000.0, "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
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
QWEN_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
SIGLIP = {"vision_config": VISION | {"image_size": 28, "patch_size": 14}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": (
        "Gemma3",
        SIGLIP
        | {"text_config": GEMMA, "mm_tokens_per_image": 4}
        | {"boi_token_index": 509, "eoi_token_index": 510, "image_token_index": 511},
    ),
    "mistral3-ministral3": ("Mistral3", SIGLIP | {"text_config": MINISTRAL, "tie_word_embeddings": False}),
    "mistral3-mistral": ("Mistral3", SIGLIP | {"text_config": MISTRAL, "tie_word_embeddings": False}),
    "lfm2_vl": (
        "Lfm2Vl",
        {
            "text_config": TEXT | {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
            "vision_config": VISION | {"model_type": "siglip2_vision_model", "num_patches": 4},
        },
    ),
    "qwen2_5_vl": ("Qwen2_5_VL", {"text_config": QWEN, "vision_config": QWEN_VISION}),
    "qwen3_vl": (
        "Qwen3VL",
        {
            "text_config": QWEN,
            "vision_config": QWEN_VISION | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        },
    ),
    "smolvlm": (
        "SmolVLM",
        {
            "text_config": TEXT | {"model_type": "llama"},
            "vision_config": VISION | {"image_size": 28, "patch_size": 14},
            "image_token_id": 511,
        },
    ),
}


def make_model(torch: Any, case: str) -> Any:
    """Return a model of transformers with random weights that its positions and norms matter to."""
    import transformers

    name, fields = CASES[case]
    config = getattr(transformers, f"{name}Config")(**fields)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    language_model = model.model.text_model if case == "smolvlm" else model.model.language_model
    with torch.no_grad():
        for part in (language_model, model.lm_head):
            for parameter in part.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
                else:
                    parameter.normal_(0.0, 2 / parameter.shape[1] ** 0.5)
    return model


@pytest.mark.parametrize(
    ("case", "layout"), [*((case, "published") for case in CASES), ("gemma3", "in memory"), ("qwen3_vl", "in memory")]
)
def test_text(torch: Any, tmp_path: Path, case: str, layout: str) -> None:
    model = make_model(torch, case)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    model.save_pretrained(tmp_path / "model")
    if layout == "in memory":
        tied = () if case != "gemma3" else ("lm_head.weight",)
        tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items() if name not in tied}
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
    text = {name: value for name, value in GEMMA.items() if name != "rope_scaling"} | GEMMA4
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
