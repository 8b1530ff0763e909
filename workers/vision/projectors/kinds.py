"""The projectors that are read, by `clip.projector_type` of their files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workers.vision.projectors import clip_descriptions, descriptions
from workers.vision.projectors.clip_sources import (
    MERGING,
    internvl_sources,
    llava_sources,
    pixtral_sources,
    unified_sources,
)
from workers.vision.projectors.projector_file import ProjectorFile
from workers.vision.projectors.projector_sources import (
    SourcesOf,
    gemma3_sources,
    gemma4_sources,
    qwen_sources,
    siglip_sources,
)

Values = dict[str, Any]
Names = Mapping[str, tuple[str, str]]
"""The class in transformers, and `model_type`, by `general.architecture` of the language model."""


@dataclass(frozen=True, slots=True)
class ProjectorKind:
    """One value of `clip.projector_type`."""

    names: Names
    tokens: Mapping[str, str]
    """The texts of special tokens by the fields of config.json with their ids, the image token first."""
    describe: Callable[[ProjectorFile], Values]
    """Reads fields of config.json. Raises `CheckpointError`."""
    prepare: Callable[[ProjectorFile], Values]
    """Reads preprocessor_config.json. Raises `CheckpointError`."""
    sources: SourcesOf
    sections: bool = False
    """The language model has positions on three axes."""
    merging: Names | None = None
    """The names where a layer merges patches (Mistral 3); None for none other."""
    width: Callable[[ProjectorFile], int] = lambda file: file.integer("projection_dim")
    """Reads the hidden size of the language model. Raises `CheckpointError`."""
    unread: frozenset[str] = frozenset()
    """Tensors that the language model has as well."""

    def names_of(self, file: ProjectorFile) -> Names:
        """Return the class and `model_type` by the architecture of the language model."""
        return self.names if self.merging is None or not file.has(MERGING) else self.merging


QWEN_TOKENS = {"image_token_id": "<|image_pad|>"}
GEMMA3_TOKENS = {
    "image_token_index": "<image_soft_token>",
    "boi_token_index": "<start_of_image>",
    "eoi_token_index": "<end_of_image>",
}
GEMMA4_TOKENS = {"image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>"}
IMAGE_TOKEN = {"image_token_id": "<image>"}
QWEN3_NAMES = {
    "qwen3vl": ("Qwen3VL", "qwen3_vl"),
    "qwen3vlmoe": ("Qwen3VLMoe", "qwen3_vl_moe"),
    "qwen35": ("Qwen3_5", "qwen3_5"),
    "qwen35moe": ("Qwen3_5Moe", "qwen3_5_moe"),
}
LFM2_MERGER = {"merger.norm": "mm.input_norm", "merger.up": "mm.1", "merger.down": "mm.2"}
KINDS: Mapping[str, ProjectorKind] = {
    "gemma3": ProjectorKind(
        {"gemma3": ("Gemma3", "gemma3")},
        GEMMA3_TOKENS,
        descriptions.describe_gemma3,
        descriptions.prepare_gemma3,
        gemma3_sources,
    ),
    "gemma4v": ProjectorKind(
        {"gemma4": ("Gemma4", "gemma4")},
        GEMMA4_TOKENS,
        descriptions.describe_gemma4,
        descriptions.prepare_gemma4,
        gemma4_sources,
    ),
    "gemma4uv": ProjectorKind(
        {"gemma4": ("Gemma4Unified", "gemma4_unified")},
        GEMMA4_TOKENS,
        clip_descriptions.describe_unified,
        clip_descriptions.prepare_unified,
        unified_sources,
    ),
    "idefics3": ProjectorKind(
        {"llama": ("SmolVLM", "smolvlm")},
        IMAGE_TOKEN,
        descriptions.describe_idefics3,
        descriptions.prepare_idefics3,
        siglip_sources({"merger.down": "mm.model.fc"}),
    ),
    "internvl": ProjectorKind(
        dict.fromkeys(("qwen2", "qwen3", "qwen3moe", "llama"), ("InternVL", "internvl")),
        {"image_token_id": "<IMG_CONTEXT>"},
        clip_descriptions.describe_internvl,
        clip_descriptions.prepare_internvl,
        internvl_sources,
    ),
    "lfm2": ProjectorKind(
        {"lfm2": ("Lfm2Vl", "lfm2_vl")},
        IMAGE_TOKEN,
        descriptions.describe_lfm2,
        descriptions.prepare_lfm2,
        siglip_sources(LFM2_MERGER, channels_last=True),
    ),
    "mlp": ProjectorKind(
        {"llama": ("Llava", "llava")},
        {"image_token_index": "<image>"},
        clip_descriptions.describe_llava,
        clip_descriptions.prepare_llava,
        llava_sources,
        width=lambda file: file.shape("mm.2.weight")[0],
    ),
    "pixtral": ProjectorKind(
        {"llama": ("Llava", "llava")},
        {"image_token_index": "[IMG]"},
        clip_descriptions.describe_pixtral,
        clip_descriptions.prepare_pixtral,
        pixtral_sources,
        merging=dict.fromkeys(("mistral3", "llama"), ("Mistral3", "mistral3")),
        unread=frozenset({"v.token_embd.img_break"}),
    ),
    "qwen2vl_merger": ProjectorKind(
        {"qwen2vl": ("Qwen2VL", "qwen2_vl")},
        QWEN_TOKENS,
        descriptions.describe_qwen2,
        descriptions.prepare_qwen2,
        qwen_sources,
        sections=True,
    ),
    "qwen2.5vl_merger": ProjectorKind(
        {"qwen2vl": ("Qwen2_5_VL", "qwen2_5_vl")},
        QWEN_TOKENS,
        descriptions.describe_qwen2_5,
        descriptions.prepare_qwen2,
        qwen_sources,
        sections=True,
    ),
    "qwen3vl_merger": ProjectorKind(
        QWEN3_NAMES, QWEN_TOKENS, descriptions.describe_qwen3, descriptions.prepare_qwen3, qwen_sources, sections=True
    ),
}
