"""The vision tower of a language model in GGUF files, in a file of its own: its description as a multimodal checkpoint
has it, its tensors and its preprocessing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.gguf.architectures import config_fields
from workers.checkpoints.gguf.find import gguf_path
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.vocabulary import PREFIX, GgufVocabulary
from workers.vision.config import VisionConfig
from workers.vision.families.family import Sources
from workers.vision.parameters import parameter_shapes
from workers.vision.projectors import descriptions
from workers.vision.projectors.projector_file import ProjectorFile, ProjectorTensors, ProjectorUnfit
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
SECTIONS = "rope.dimension_sections"


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
    "idefics3": ProjectorKind(
        {"llama": ("SmolVLM", "smolvlm")},
        IMAGE_TOKEN,
        descriptions.describe_idefics3,
        descriptions.prepare_idefics3,
        siglip_sources({"merger.down": "mm.model.fc"}),
    ),
    "lfm2": ProjectorKind(
        {"lfm2": ("Lfm2Vl", "lfm2_vl")},
        IMAGE_TOKEN,
        descriptions.describe_lfm2,
        descriptions.prepare_lfm2,
        siglip_sources(LFM2_MERGER, channels_last=True),
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


@dataclass(frozen=True, slots=True)
class Projector:
    """A projector beside the language model that it belongs to."""

    file: ProjectorFile
    kind: ProjectorKind
    fields: Fields
    """config.json of the multimodal model that both make."""

    @classmethod
    def open(cls, model: Path, path: Path) -> "Projector":
        """Open the projector of a model in GGUF files. Raises `CheckpointError`, and `ProjectorUnfit` for one that is
        not supported or does not fit the model."""
        text, file = _language_model(model), ProjectorFile(path)
        kind = KINDS.get(file.type)
        key = "clip.projector_type"
        if kind is None:
            raise ProjectorUnfit(path, key, f"{file.type!r} is not supported, only {', '.join(KINDS)}")
        architecture = Keys(text).architecture
        if architecture not in kind.names:
            problem = (
                f"{file.type!r} is for {' or '.join(kind.names)}, and the model {text.path.name} is {architecture}"
            )
            raise ProjectorUnfit(path, key, problem)
        name, family = kind.names[architecture]
        fields, vocabulary = Fields(text.path, config_fields(text)), GgufVocabulary.of(text)
        if (width := file.integer("projection_dim")) != (own := fields.values["hidden_size"]):
            raise file.unfit("projection_dim", f"is {width}, and the model {text.path.name} has a hidden size of {own}")
        values = {
            "architectures": [f"{name}ForConditionalGeneration"],
            "model_type": family,
            "text_config": dict(fields.values) | _text_fields(text, fields, vocabulary, sections=kind.sections),
            **kind.describe(file),
            **_token_ids(text, vocabulary, kind, path),
        }
        found = cls(file, kind, Fields(path, values))
        found._check_taps(text)
        return found

    @property
    def preprocessor(self) -> Fields:
        """preprocessor_config.json. Raises `CheckpointError`."""
        return Fields(self.file.path, self.kind.prepare(self.file))

    @property
    def tensors(self) -> ProjectorTensors:
        return ProjectorTensors(self.file.model)

    def sources(self, config: VisionConfig) -> Sources:
        """Return the tensors of which the parameters of a tower are made, by their names in the file."""
        return self.kind.sources(config, self.file)

    def check(self, config: VisionConfig) -> None:
        """Raise `ProjectorUnfit` for a tensor of the tower that its description leaves out."""
        sources = self.sources(config)
        read = {tensor for name in parameter_shapes(config) for tensor in sources[name].tensors}
        for name in self.file.model.tensors:
            if name not in read and name.startswith(("v.", "mm.")) and not name.startswith("mm.a."):
                problem = f"the tensor is not part of a tower of {self.file.type!r}"
                raise ProjectorUnfit(self.file.path, name, problem)

    def _check_taps(self, text: GgufFile) -> None:
        """Raises `ProjectorUnfit` for a deep stack that the language model does not expect."""
        keys = Keys(text)
        stated = keys.peek("n_deepstack_layers")
        taps = len(self.fields.values["vision_config"].get("deepstack_visual_indexes", ()))
        if stated is not None and stated != taps:
            problem = f"has {taps} layers, and {keys.architecture}.n_deepstack_layers of the model is {stated!r}"
            raise self.file.unfit("is_deepstack_layers", problem)


def _language_model(path: Path) -> GgufFile:
    file = gguf_path(path)
    assert file is not None, "only models in GGUF files have projectors"
    return GgufFile.open(file)


def _text_fields(text: GgufFile, fields: Fields, vocabulary: GgufVocabulary | None, *, sections: bool) -> Values:
    """Return the fields of `text_config` that only images need."""
    found: Values = {} if vocabulary is None else {"pad_token_id": vocabulary.role("padding")}
    keys = Keys(text)
    if keys.architecture == "gemma4" and not keys.peek("embedding_length_per_layer_input"):
        # No key states it: all models without embeddings for each layer were published with it.
        found["use_bidirectional_attention"] = "vision"
    if sections:
        value = keys.peek(SECTIONS)
        if not isinstance(value, list) or len(value) not in (3, 4) or any(value[3:]):
            raise keys.error(SECTIONS, f"{value!r} is not a list of three sections, which images need")
        found["rope_scaling"] = dict(fields.get("rope_scaling") or {}) | {"mrope_section": value[:3]}
    return found


def _token_ids(text: GgufFile, vocabulary: GgufVocabulary | None, kind: ProjectorKind, path: Path) -> Values:
    """Return the ids of the special tokens. Raises `ProjectorUnfit` for a vocabulary without one."""
    known = {} if vocabulary is None else {each["content"]: each["id"] for each in vocabulary.added()}
    missing = next((token for token in kind.tokens.values() if token not in known), None)
    if missing is not None:
        raise ProjectorUnfit(
            text.path, f"{PREFIX}tokens", f"have no token {missing!r}, which images need ({path.name})"
        )
    return {name: known[token] for name, token in kind.tokens.items()}
