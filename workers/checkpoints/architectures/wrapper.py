"""Multimodal models: the language model in them, which is served, and the parts around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.fields import Fields


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A class of transformers that contains a language model of one of the families."""

    family: str
    """The family of the language model, whose fields are `text_config` in config.json."""
    inside: Mapping[str, str]
    """Prefixes of the language model's tensors, with the prefixes that they have in the language model alone."""
    around: tuple[str, ...]
    """Prefixes of the tensors of other parts, which text does not reach."""


GEMMA4_PARTS = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "vision_embedder.")
WRAPPERS: Mapping[str, Wrapper] = {
    "Gemma3ForConditionalGeneration": Wrapper(
        "gemma3_text",
        # As published, and as transformers names them in memory since 4.52, which tools that save tensors write.
        {"language_model.": "", "model.language_model.": "model.", "lm_head.": "lm_head."},
        ("vision_tower.", "multi_modal_", "model.vision_tower.", "model.multi_modal_"),
    ),
    **{
        f"{name}ForConditionalGeneration": Wrapper(
            family,
            # As transformers writes them, and as mlx-lm does.
            {"model.language_model.": "model.", "language_model.": "", "lm_head.": "lm_head."},
            tuple(prefix + part for prefix in ("model.", "") for part in GEMMA4_PARTS),
        )
        for name, family in (("Gemma4", "gemma4_text"), ("Gemma4Unified", "gemma4_unified_text"))
    },
    "Qwen3_5ForConditionalGeneration": Wrapper(
        "qwen3_5_text",
        # As published, and as mlx-lm writes them.
        {"model.language_model.": "model.", "language_model.": "", "lm_head.": "lm_head.", "mtp.": "mtp."},
        ("model.visual.", "vision_tower."),
    ),
    "Qwen3_5MoeForConditionalGeneration": Wrapper(
        "qwen3_5_moe_text",
        {"model.language_model.": "model.", "language_model.": "", "lm_head.": "lm_head.", "mtp.": "mtp."},
        ("model.visual.", "vision_tower."),
    ),
}
"""The wrappers by `architectures` of config.json. Gemma 3 is published so from 4B on, Qwen 3.5 in all sizes."""
SHARED = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization", "quantization_config")
"""Fields beside `text_config` that hold for the language model."""


def unwrap(fields: Fields) -> tuple[Fields, Wrapper | None]:
    """Find the fields of the language model and the wrapper around it; a plain model has none.

    Raises `CheckpointError`.
    """
    names = fields.get("architectures")
    wrapper = next((wrapper for name, wrapper in WRAPPERS.items() if names == [name]), None)
    if wrapper is None:
        return fields, None
    text = fields.section("text_config")
    if text is None:
        raise fields.error("text_config", "is missing")
    shared = {name: _inside(fields.values[name], wrapper) for name in SHARED if name in fields.values}
    family = {"architectures": [FAMILIES[wrapper.family].architecture], "model_type": wrapper.family}
    return Fields(fields.file, shared | dict(text.values) | family, prefix="text_config."), wrapper


def _inside(value: Any, wrapper: Wrapper) -> Any:
    """Rename modules in a value as they are named in the language model."""
    if not isinstance(value, dict):
        return value
    return {name_inside(name, wrapper.inside) or name: each for name, each in value.items()}


def name_inside(name: str, inside: Mapping[str, str]) -> str | None:
    """The name of a tensor or module in the language model alone (see `Wrapper.inside`); None in other parts."""
    prefix = next((prefix for prefix in inside if name.startswith(prefix)), None)
    return None if prefix is None else inside[prefix] + name.removeprefix(prefix)
