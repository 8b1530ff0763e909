"""Multimodal models: the language model in them, which is served, and the parts around it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.rope_fields import SECTION_KEYS


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A class of transformers that contains a language model of one of the families."""

    families: Mapping[str, str]
    """The families of the language model by `model_type` of `text_config`; the first one's is the default."""
    inside: Mapping[str, str]
    """Prefixes of the language model's tensors, with the prefixes that they have in the language model alone."""
    around: tuple[str, ...]
    """Prefixes of the tensors of other parts, which text does not reach."""
    flat: bool = False
    """Fields of the language model may be outside of `text_config`, as Qwen2.5-VL was published."""
    sections: bool = False
    """Positions are in sections, of which a text has the same in all: they are plain ones."""
    transposes_experts: bool = False
    """Stacks of experts may have matrices [inputs, outputs], as Qwen3-VL was published."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the language model that the class decides on."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that the language model may leave out, where the class has others than its family."""


# As published, and as transformers names them in memory since 4.52, which tools that save tensors write.
LLAVA = {"language_model.": "", "model.language_model.": "model.", "lm_head.": "lm_head."}
LLAVA_AROUND = ("vision_tower.", "multi_modal_", "model.vision_tower.", "model.multi_modal_")
# As published, and as mlx-lm writes them.
QWEN = {"model.language_model.": "model.", "language_model.": "", "lm_head.": "lm_head."}
QWEN_AROUND = ("model.visual.", "visual.", "vision_tower.")
QWEN_VL = QWEN | {name: name for name in ("model.embed_tokens.", "model.layers.", "model.norm.")}
IDEFICS3 = {"model.text_model.": "model.", "language_model.": "", "lm_head.": "lm_head."}
IDEFICS3_AROUND = ("model.vision_model.", "model.connector.", "vision_model.", "connector.")
GEMMA4_PARTS = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "vision_embedder.")
WRAPPERS: Mapping[str, Wrapper] = {
    "Gemma3ForConditionalGeneration": Wrapper({"gemma3_text": "gemma3_text"}, LLAVA, LLAVA_AROUND),
    **{
        f"{name}ForConditionalGeneration": Wrapper(
            {"glm4v_text": "glm4"},
            QWEN,
            QWEN_AROUND,
            sections=True,
            fixed={"attention_bias": True},
            defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0},
        )
        for name in ("Glm4v", "Glm46V")
    },
    "GlmOcrForConditionalGeneration": Wrapper(
        {"glm_ocr_text": "glm4"},
        QWEN,
        QWEN_AROUND,
        sections=True,
        fixed={"attention_bias": False},
        # transformers leaves the layer out of any checkpoint.
        defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0, "num_nextn_predict_layers": 1},
    ),
    "Glm4vMoeForConditionalGeneration": Wrapper(
        {"glm4v_moe_text": "glm4_moe"},
        QWEN,
        QWEN_AROUND,
        sections=True,
        fixed={"use_qk_norm": False},
        defaults={"attention_bias": True},
    ),
    "InternVLForConditionalGeneration": Wrapper(
        {name: name for name in ("qwen2", "qwen3", "qwen3_moe", "llama")}, LLAVA, LLAVA_AROUND
    ),
    "LlavaForConditionalGeneration": Wrapper(
        {"llama": "llama", "mistral": "mistral", "qwen2": "qwen2"},
        LLAVA,
        LLAVA_AROUND,
        # As LLaVA 1.5 and Pixtral were published, by the defaults of transformers; tensors of other sizes are refused.
        defaults={
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 32000,
        },
    ),
    "LlavaOnevisionForConditionalGeneration": Wrapper(
        {name: name for name in ("qwen2", "qwen3", "llama")},
        LLAVA,
        (*LLAVA_AROUND, "image_newline", "model.image_newline"),
    ),
    "Mistral3ForConditionalGeneration": Wrapper(
        {"mistral": "mistral", "ministral3": "ministral3"}, LLAVA, LLAVA_AROUND
    ),
    **{
        f"{name}ForConditionalGeneration": Wrapper(
            {family: family, family.removesuffix("_text"): family},
            # As transformers writes them, and as mlx-lm does.
            {"model.language_model.": "model.", "language_model.": "", "lm_head.": "lm_head."},
            tuple(prefix + part for prefix in ("model.", "") for part in GEMMA4_PARTS),
        )
        for name, family in (("Gemma4", "gemma4_text"), ("Gemma4Unified", "gemma4_unified_text"))
    },
    "Qwen2VLForConditionalGeneration": Wrapper(
        {"qwen2_vl_text": "qwen2", "qwen2_vl": "qwen2"}, QWEN_VL, QWEN_AROUND, flat=True, sections=True
    ),
    "Qwen2_5_VLForConditionalGeneration": Wrapper(
        {"qwen2_5_vl_text": "qwen2", "qwen2_5_vl": "qwen2"}, QWEN_VL, QWEN_AROUND, flat=True, sections=True
    ),
    "Qwen3VLForConditionalGeneration": Wrapper({"qwen3_vl_text": "qwen3"}, QWEN, QWEN_AROUND, sections=True),
    "Qwen3VLMoeForConditionalGeneration": Wrapper(
        {"qwen3_vl_moe_text": "qwen3_moe"},
        QWEN,
        QWEN_AROUND,
        sections=True,
        transposes_experts=True,
        fixed={"norm_topk_prob": True},
    ),
    "Qwen3_5ForConditionalGeneration": Wrapper({"qwen3_5_text": "qwen3_5_text"}, QWEN | {"mtp.": "mtp."}, QWEN_AROUND),
    "Qwen3_5MoeForConditionalGeneration": Wrapper(
        {"qwen3_5_moe_text": "qwen3_5_moe_text"}, QWEN | {"mtp.": "mtp."}, QWEN_AROUND
    ),
    "PaddleOCRVLForConditionalGeneration": Wrapper(
        # Ernie 4.5 without its pairs of neighbouring lanes, which leaves Llama.
        {"paddleocr_vl_text": "llama", "paddleocr_vl": "llama"},
        QWEN_VL,
        ("model.visual.", "visual.", "model.projector.", "mlp_AR."),
        flat=True,
        sections=True,
        defaults={
            "head_dim": 128,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
        },
    ),
    "Lfm2VlForConditionalGeneration": Wrapper({"lfm2": "lfm2"}, LLAVA, LLAVA_AROUND),
    **{
        f"{name}ForConditionalGeneration": Wrapper({"llama": "llama"}, IDEFICS3, IDEFICS3_AROUND)
        for name in ("Idefics3", "SmolVLM")
    },
}
"""The wrappers by `architectures` of config.json. Gemma 3 is published so from 4B on, Qwen 3.5 in all sizes."""
SHARED = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization", "quantization_config")
"""Fields beside `text_config` that hold for the language model."""
OUTER = ("architectures", "model_type", "vision_config")
"""Fields that are not the language model's where it has no `text_config`."""
PLANS = ("rope_parameters", "rope_scaling")


def unwrap(fields: Fields) -> tuple[Fields, Wrapper | None]:
    """Find the fields of the language model and the wrapper around it; a plain model has none.

    Raises `CheckpointError`.
    """
    names = fields.get("architectures")
    wrapper = next((wrapper for name, wrapper in WRAPPERS.items() if names == [name]), None)
    if wrapper is None:
        return fields, None
    text = fields.section("text_config")
    if text is None and not wrapper.flat:
        raise fields.error("text_config", "is missing")
    values = _outer_values(fields) if text is None else text.values
    family = _family_inside(fields if text is None else text, wrapper)
    if wrapper.sections:
        values = {name: _without_sections(each) if name in PLANS else each for name, each in values.items()}
    shared = {name: module_names_inside(fields.values[name], wrapper) for name in SHARED if name in fields.values}
    known = {"architectures": [FAMILIES[family].architecture], "model_type": family, **wrapper.fixed}
    merged = {**wrapper.defaults, **shared, **values, **known}
    return Fields(fields.file, merged, prefix="" if text is None else "text_config."), wrapper


def _outer_values(fields: Fields) -> dict[str, Any]:
    """Return the fields of a language model that are beside those of the other parts."""
    return {name: value for name, value in fields.values.items() if name not in OUTER + SHARED}


def _family_inside(text: Fields, wrapper: Wrapper) -> str:
    """Return the family of the language model. Raises `CheckpointError` for one that the wrapper does not contain."""
    name = text.get("model_type", next(iter(wrapper.families)))
    if not isinstance(name, str) or name not in wrapper.families:
        known = " or ".join(map(repr, wrapper.families))
        raise text.error("model_type", f"{name!r} is not supported in this class, only {known}")
    return wrapper.families[name]


def _without_sections(plan: Any) -> Any:
    """Return a plan of rotary positions as a text has them."""
    if not isinstance(plan, dict):
        return plan
    kept = {name: value for name, value in plan.items() if name not in SECTION_KEYS}
    return {name: "default" if value == "mrope" else value for name, value in kept.items()}


def module_names_inside(value: Any, wrapper: Wrapper) -> Any:
    """Rename modules in a value as they are named in the language model."""
    if not isinstance(value, dict):
        return value
    return {name_inside(name, wrapper.inside) or name: each for name, each in value.items()}


def name_inside(name: str, inside: Mapping[str, str]) -> str | None:
    """The name of a tensor or module in the language model alone (see `Wrapper.inside`); None in other parts."""
    prefix = next((prefix for prefix in inside if name.startswith(prefix)), None)
    return None if prefix is None else inside[prefix] + name.removeprefix(prefix)
