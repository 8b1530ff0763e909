"""Models of more than text: the language model in them, which is served, and what stands around it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.fields import Fields


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A class of transformers in which a model of one of the families reads what other parts make of images."""

    family: str
    """Of its language model, whose fields are config.json's `text_config`."""
    inside: Mapping[str, str]
    """What the names of the language model's tensors begin with, and what they would begin with by themselves."""
    around: tuple[str, ...]
    """What those of the other parts begin with: text alone never comes to them."""


WRAPPERS: Mapping[str, Wrapper] = {
    "Gemma3ForConditionalGeneration": Wrapper(
        "gemma3_text",
        # As published, and as transformers names them in memory since 4.52, which tools that save tensors write.
        {"language_model.": "", "model.language_model.": "model.", "lm_head.": "lm_head."},
        ("vision_tower.", "multi_modal_", "model.vision_tower.", "model.multi_modal_"),
    ),
}
"""By config.json's `architectures`. Gemma 3 is published so from 4B on."""
SHARED = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization", "quantization_config")
"""Fields that may stand beside `text_config` and speak of it."""


def unwrap(fields: Fields) -> tuple[Fields, Wrapper | None]:
    """The description of the language model, and what is around it; a plain model's is as it was.

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
    """With modules named as they are within the language model."""
    if not isinstance(value, dict):
        return value
    return {by_itself(name, wrapper.inside) or name: each for name, each in value.items()}


def by_itself(name: str, inside: Mapping[str, str]) -> str | None:
    """What a tensor or module is called in the language model alone (see `Wrapper.inside`); None for another part's."""
    prefix = next((prefix for prefix in inside if name.startswith(prefix)), None)
    return None if prefix is None else inside[prefix] + name.removeprefix(prefix)
