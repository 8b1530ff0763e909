"""The families of multimodal checkpoints with towers of CLIP, Pixtral and others: see `families`."""

from collections.abc import Mapping
from typing import Any

from tests.vision_checkpoints.case import SIGLIP, VisionCase
from tests.vision_checkpoints.templates import LLAVA_TEMPLATE, PIXTRAL_TEMPLATE

CLIP_VALUES: Mapping[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
PIXTRAL_TOWER: Mapping[str, Any] = {
    **SIGLIP,
    "model_type": "pixtral",
    "head_dim": 16,
    "patch_size": 4,
    "image_size": 48,
    "hidden_act": "silu",
}
PIXTRAL_PREPROCESSOR: Mapping[str, Any] = {
    **CLIP_VALUES,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_processor_type": "PixtralImageProcessor",
    "patch_size": {"height": 4, "width": 4},
    "processor_class": "PixtralProcessor",
    "resample": 3,
    "rescale_factor": 1 / 255,
    "size": {"longest_edge": 48},
}
PIXTRAL_SPECIALS = ("<s>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]")
FURTHER_FAMILIES: Mapping[str, VisionCase] = {
    "llava": VisionCase(
        "Llava",
        {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {
            **SIGLIP,
            "model_type": "clip_vision_model",
            "num_hidden_layers": 3,
            "image_size": 24,
            "patch_size": 4,
            "projection_dim": 16,
        },
        {
            **CLIP_VALUES,
            "crop_size": {"height": 24, "width": 24},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "LlavaProcessor",
            "resample": 3,
            "rescale_factor": 1 / 255,
            "size": {"shortest_edge": 24},
        },
        ("<image>",),
        LLAVA_TEMPLATE,
        {"image_token_index": "<image>"},
        fields={"vision_feature_layer": -2, "vision_feature_select_strategy": "default"},
        processor={
            "num_additional_image_tokens": 1,
            "patch_size": 4,
            "processor_class": "LlavaProcessor",
            "vision_feature_select_strategy": "default",
        },
        named={"image_token": "<image>"},
    ),
    "mistral3": VisionCase(
        "Mistral3",
        {"model_type": "mistral", "sliding_window": None, "rms_norm_eps": 1e-5},
        PIXTRAL_TOWER,
        PIXTRAL_PREPROCESSOR,
        PIXTRAL_SPECIALS,
        PIXTRAL_TEMPLATE,
        {"image_token_index": "[IMG]"},
        fields={"spatial_merge_size": 2, "vision_feature_layer": -1, "tie_word_embeddings": False},
        processor={"patch_size": 4, "processor_class": "PixtralProcessor", "spatial_merge_size": 2},
    ),
    "pixtral": VisionCase(
        "Llava",
        {"model_type": "mistral", "sliding_window": None},
        {**PIXTRAL_TOWER, "hidden_act": "gelu"},
        PIXTRAL_PREPROCESSOR,
        PIXTRAL_SPECIALS,
        PIXTRAL_TEMPLATE,
        {"image_token_index": "[IMG]"},
        fields={"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        processor={"patch_size": 4, "processor_class": "PixtralProcessor"},
        model_type="llava",
    ),
}
"""By the `model_type` of config.json, or another name where a class has several towers."""
