"""Towers of CLIP, Pixtral and others in published models, by their config.json as on the hub, from memory."""

from pathlib import Path
from typing import Any

import pytest

from tests.vision_checkpoints import make_vision_description
from tests.workers.vision.test_published import read
from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.json_files import CheckpointError
from workers.vision.processor import ImageProcessor

SIDES = range(384, 2305, 384)

PIXTRAL_VISION: dict[str, Any] = {
    "head_dim": 64,
    "hidden_act": "gelu",
    "image_size": 1024,
    "model_type": "pixtral",
    "patch_size": 16,
    "rope_theta": 10000.0,
}
MISTRAL_TEXT: dict[str, Any] = {
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 14336,
    "max_position_embeddings": 1024000,
    "model_type": "mistral",
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000000.0,
    "sliding_window": None,
    "vocab_size": 131072,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "LLaVA 1.5 7B": {
        "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": 32000,
        "model_type": "llava",
        "pad_token_id": 32001,
        "projector_hidden_act": "gelu",
        "text_config": {
            "architectures": ["LlamaForCausalLM"],
            "max_position_embeddings": 4096,
            "model_type": "llama",
            "rms_norm_eps": 1e-05,
            "torch_dtype": "float16",
            "vocab_size": 32064,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "vision_config": {
            "hidden_size": 1024,
            "image_size": 336,
            "intermediate_size": 4096,
            "model_type": "clip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": 14,
            "projection_dim": 768,
            "vocab_size": 32000,
        },
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "vocab_size": 32064,
    },
    "Mistral Small 3.1": {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "image_token_index": 10,
        "model_type": "mistral3",
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "text_config": {**MISTRAL_TEXT, "intermediate_size": 32768, "num_attention_heads": 32},
        "torch_dtype": "bfloat16",
        "vision_config": {
            **PIXTRAL_VISION,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "image_size": 1540,
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_channels": 3,
            "num_hidden_layers": 24,
            "patch_size": 14,
        },
        "vision_feature_layer": -1,
    },
    "Pixtral 12B": {
        "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": 10,
        "model_type": "llava",
        "projector_hidden_act": "gelu",
        "text_config": MISTRAL_TEXT,
        "torch_dtype": "bfloat16",
        "vision_config": PIXTRAL_VISION,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
}
SIZES = {
    "LLaVA 1.5 7B": (312, 23, 1, 24 * 24),
    "Mistral Small 3.1": (439, 24, 4, None),
    "Pixtral 12B": (435, 24, 1, None),
}
"""Millions of parameters, layers, patches of a token, and positions of the table."""


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_sizes(tmp_path: Path, name: str) -> None:
    config, millions = read(tmp_path, PUBLISHED[name], "vision_tower.a")
    places = None if config.table is None else config.table[0] * config.table[1]
    assert (millions, config.layers, config.group, places) == SIZES[name]
    assert (config.hidden, config.heads, config.head_dim, config.mlp) == (1024, 16, 64, 4096)


LLAVA_ONEVISION_7B: dict[str, Any] = {
    "architectures": ["LlavaOnevisionForConditionalGeneration"],
    "image_grid_pinpoints": [[height, width] for height in SIDES for width in SIDES],
    "image_token_index": 151646,
    "model_type": "llava_onevision",
    "projector_hidden_act": "gelu",
    "text_config": {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "model_type": "qwen2",
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rope_theta": 1000000.0,
        "torch_dtype": "bfloat16",
        "vocab_size": 152000,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_image_newline_parameter": True,
    "video_token_index": 151647,
    "vision_aspect_ratio": "anyres_max_9",
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 384,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 26,
        "patch_size": 14,
        "vision_use_head": False,
    },
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
}


def test_llava_onevision_7b(tmp_path: Path) -> None:
    config, millions = read(tmp_path, LLAVA_ONEVISION_7B, "vision_tower.vision_model.a")
    assert (millions, config.layers, config.group, config.table) == (415, 26, 1, (27, 27))
    assert (config.hidden, config.head_dim, config.mlp, config.output) == (1152, 72, 4304, 3584)
    assert (config.last_norm, config.newline, config.full_layers) == (False, True, frozenset())


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "aspect": ({"vision_aspect_ratio": "pad"}, r"vision_aspect_ratio: 'pad' is not supported, only 'anyres_max_9'"),
    "grid": ({"image_grid_pinpoints": [[384, 400]]}, r"384 x 400 pixels are not 1 to 64 tiles of 26 x 26"),
    "large grid": ({"image_grid_pinpoints": [[26 * 7, 26 * 10]]}, r"182 x 260 pixels are not 1 to 64 tiles of 26 x 26"),
    "no grids": ({"image_grid_pinpoints": []}, r"image_grid_pinpoints: is not a list of 1 to 256 pairs"),
    "other grids": ({"image_grid_pinpoints": [[26, 26]]}, r"image_grid_pinpoints: is not that of config\.json"),
    "strategy": ({"vision_feature_select_strategy": "default"}, r"'default' is not supported, only 'full'"),
    "tower": ({"vision_config": {"model_type": "clip_vision_model"}}, r"'clip_vision_model' is not supported in this"),
}


@pytest.mark.parametrize("case", sorted(UNSUPPORTED))
def test_settings_of_llava_onevision_that_are_not_supported(tmp_path: Path, case: str) -> None:
    fields, problem = UNSUPPORTED[case]
    path = make_vision_description(tmp_path, "llava_onevision", fields=fields)
    if case.endswith(("grid", "no grids")):
        make_vision_description(tmp_path, "llava_onevision", fields=fields, preprocessor=fields)
    with pytest.raises(CheckpointError, match=problem):
        ImageProcessor.of(path)


GLM_OCR: dict[str, Any] = {
    "architectures": ["GlmOcrForConditionalGeneration"],
    "image_token_id": 59280,
    "model_type": "glm_ocr",
    "text_config": {
        "attention_bias": False,
        "head_dim": 128,
        "hidden_size": 1536,
        "intermediate_size": 4608,
        "max_position_embeddings": 131072,
        "model_type": "glm_ocr_text",
        "num_attention_heads": 16,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {
            "mrope_section": [16, 24, 24],
            "partial_rotary_factor": 1.0,
            "rope_theta": 10000,
            "rope_type": "default",
        },
        "vocab_size": 59392,
    },
    "tie_word_embeddings": False,
    "vision_config": {
        "attention_bias": True,
        "depth": 24,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "image_size": 336,
        "in_channels": 3,
        "intermediate_size": 4096,
        "model_type": "glm_ocr_vision",
        "num_heads": 16,
        "out_hidden_size": 1536,
        "patch_size": 14,
        "rms_norm_eps": 1e-05,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}


def test_glm_ocr(tmp_path: Path) -> None:
    config, millions = read(tmp_path, GLM_OCR, "model.visual.a")
    assert (millions, config.layers, config.group, config.table) == (434, 24, 4, None)
    assert (config.hidden, config.heads, config.mlp, config.output) == (1024, 16, 4096, 1536)
    assert (config.biases, config.qk_norm, config.value_norm, config.merger.inner) == (True, True, False, 3 * 1536)
    text = ModelConfig.from_dir(tmp_path)
    assert text.other_tensors == ("model.layers.16.",), "the layer for multi-token prediction is left out"
