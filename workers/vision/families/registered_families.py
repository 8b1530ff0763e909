"""The families of vision towers by `architectures` of config.json."""

from collections.abc import Mapping

from workers.vision.families.family import VisionFamily
from workers.vision.families.gemma4 import GEMMA4, GEMMA4_UNIFIED
from workers.vision.families.glm import GLM4V, GLM_OCR
from workers.vision.families.internvl import INTERNVL
from workers.vision.families.llava import LLAVA
from workers.vision.families.llava_onevision import LLAVA_ONEVISION
from workers.vision.families.pixtral import MISTRAL3
from workers.vision.families.qwen import QWEN2, QWEN2_5, QWEN3
from workers.vision.families.siglip import GEMMA3_FAMILY, IDEFICS3_FAMILY, LFM2_FAMILY, PADDLEOCR_FAMILY

VISION_FAMILIES: Mapping[str, VisionFamily] = {
    f"{name}ForConditionalGeneration": family
    for name, family in {
        "Gemma3": GEMMA3_FAMILY,
        "Gemma4": GEMMA4,
        "Gemma4Unified": GEMMA4_UNIFIED,
        "Glm46V": GLM4V,
        "Glm4v": GLM4V,
        "Glm4vMoe": GLM4V,
        "GlmOcr": GLM_OCR,
        "Idefics3": IDEFICS3_FAMILY,
        "InternVL": INTERNVL,
        "Lfm2Vl": LFM2_FAMILY,
        "Llava": LLAVA,
        "LlavaOnevision": LLAVA_ONEVISION,
        "Mistral3": MISTRAL3,
        "PaddleOCRVL": PADDLEOCR_FAMILY,
        "Qwen2VL": QWEN2,
        "Qwen2_5_VL": QWEN2_5,
        "Qwen3VL": QWEN3,
        "Qwen3VLMoe": QWEN3,
        "Qwen3_5": QWEN3,
        "Qwen3_5Moe": QWEN3,
        "SmolVLM": IDEFICS3_FAMILY,
    }.items()
}
