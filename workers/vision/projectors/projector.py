"""The vision tower of a language model in GGUF files, in a file of its own: its description as a multimodal checkpoint
has it, its tensors and its preprocessing."""

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
from workers.vision.projectors.kinds import KINDS, ProjectorKind
from workers.vision.projectors.projector_file import ProjectorFile, ProjectorTensors, ProjectorUnfit

Values = dict[str, Any]
SECTIONS = "rope.dimension_sections"


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
        architecture, names = Keys(text).architecture, kind.names_of(file)
        if architecture not in names:
            problem = f"{file.type!r} is for {' or '.join(names)}, and the model {text.path.name} is {architecture}"
            raise ProjectorUnfit(path, key, problem)
        name, family = names[architecture]
        fields, vocabulary = Fields(text.path, config_fields(text)), GgufVocabulary.of(text)
        if (width := kind.width(file)) != (own := fields.values["hidden_size"]):
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
        """Raise `ProjectorUnfit` for a key or a tensor of the tower that its description leaves out."""
        self.kind.prepare(self.file)  # reads the keys of preprocessing
        self.file.refuse_others()
        sources = self.sources(config)
        read = {tensor for name in parameter_shapes(config) for tensor in sources[name].tensors}
        for name in self.file.model.tensors:
            if name not in read | self.kind.unread and name.startswith(("v.", "mm.")) and not name.startswith("mm.a."):
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
