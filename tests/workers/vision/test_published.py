"""Towers of published models, by their config.json as on the hub, from memory."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import write_safetensors
from workers.vision.config import Merger, VisionConfig
from workers.vision.parameters import parameter_shapes
from workers.vision.tower import find_tower

QWEN_2_5_VL_7B: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "hidden_act": "silu",
    "hidden_size": 3584,
    "image_token_id": 151655,
    "intermediate_size": 18944,
    "max_position_embeddings": 128000,
    "max_window_layers": 28,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "hidden_act": "silu",
        "hidden_size": 1280,
        "in_chans": 3,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 112,
    },
    "vocab_size": 152064,
}
QWEN_3_VL_4B: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 151655,
    "model_type": "qwen3_vl",
    "text_config": {
        "head_dim": 128,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": True,
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17],
        "depth": 24,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1024,
        "in_channels": 3,
        "intermediate_size": 4096,
        "model_type": "qwen3_vl",
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 2560,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "image_token_index": 262144,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
SMOLVLM_256M: dict[str, Any] = {
    "architectures": ["SmolVLMForConditionalGeneration"],
    "image_token_id": 49190,
    "model_type": "smolvlm",
    "scale_factor": 4,
    "text_config": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000,
        "vocab_size": 49280,
    },
    "tie_word_embeddings": False,
    "vision_config": {
        "hidden_size": 768,
        "image_size": 512,
        "model_type": "smolvlm_vision",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "patch_size": 16,
    },
}


def read(path: Path, fields: dict[str, Any], tensor: str) -> tuple[VisionConfig, int]:
    """Return the description of a tower, and millions of its parameters."""
    (path / "config.json").write_text(json.dumps(fields))
    write_safetensors(path / "model.safetensors", {tensor: np.zeros(1, np.float32)})
    tower = find_tower(path)
    assert tower is not None
    return tower.config, round(sum(map(math.prod, parameter_shapes(tower.config).values())) / 1e6)


def test_qwen_2_5_vl_7b(tmp_path: Path) -> None:
    config, millions = read(tmp_path, QWEN_2_5_VL_7B, "visual.a")
    assert millions == 677
    assert (config.layers, config.hidden, config.heads, config.head_dim, config.mlp) == (32, 1280, 16, 80, 3420)
    assert (config.patch_values, config.group, config.output, config.norm, config.gated) == (1176, 4, 3584, "rms", True)
    assert config.full_layers == frozenset({7, 15, 23, 31})
    assert (config.mrope, config.mrope_interleaved, config.taps, config.width) == ((16, 24, 24), False, (), 3584)
    assert config.merger == Merger("concat", "rms", True, 1e-6, 5120, "gelu", True)


def test_qwen_3_vl_4b(tmp_path: Path) -> None:
    config, millions = read(tmp_path, QWEN_3_VL_4B, "model.visual.a")
    assert millions == 415
    assert (config.layers, config.table, config.table_kind) == (24, (48, 48), "interpolated")
    assert (config.taps, config.width, config.patch_values) == ((5, 11, 17), 4 * 2560, 1536)
    assert (config.mrope, config.mrope_interleaved, config.full_layers) == ((24, 20, 20), True, None)


def test_gemma_3_4b(tmp_path: Path) -> None:
    config, millions = read(tmp_path, GEMMA_3_4B, "vision_tower.vision_model.a")
    assert millions == 420
    assert (config.layers, config.table, config.group, config.head_dim) == (27, (64, 64), 16, 72)
    assert (config.bidirectional, config.last_norm, config.merger.pooling) == ("all", True, "mean")


@pytest.mark.parametrize("tower", ["model.vision_model.a", "vision_model.a"])
def test_smolvlm_256m(tmp_path: Path, tower: str) -> None:
    config, millions = read(tmp_path, SMOLVLM_256M, tower)
    assert millions == 94
    assert (config.mlp, config.table, config.group, config.merger.inner) == (3072, (32, 32), 16, 0)
