"""The vision tower of a checkpoint: whether there is one, its description and its parameters."""

from dataclasses import dataclass
from pathlib import Path

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.wrapper import WRAPPERS
from workers.checkpoints.documents import read_fields
from workers.checkpoints.gguf.find import gguf_path
from workers.checkpoints.weight_files import WeightFiles
from workers.vision.config import VisionConfig
from workers.vision.families.family import VisionFamily
from workers.vision.families.registered_families import VISION_FAMILIES
from workers.vision.weights import VisionWeights


@dataclass(frozen=True, slots=True)
class Tower:
    """The vision tower of a checkpoint."""

    path: Path
    family: VisionFamily
    fields: Fields
    """config.json."""
    config: VisionConfig

    def weights(self) -> VisionWeights:
        """Open the parameters. Raises `CheckpointError` for files that cannot be read, and for a missing tensor."""
        return VisionWeights(self.path, self.family, self.config)


def find_tower(path: Path) -> Tower | None:
    """Find the vision tower of a checkpoint; None without one that is supported, as `no_images` explains.

    Raises `CheckpointError` for a config.json that cannot be read or has unsupported values.
    """
    found = _find(path)
    return found if isinstance(found, Tower) else None


def no_images(path: Path) -> str:
    """Return why a checkpoint takes no images, in a sentence's words; empty if it does. Raises what `find_tower`
    raises."""
    found = _find(path)
    return found if isinstance(found, str) else ""


def _find(path: Path) -> Tower | str:
    """Return the tower, or why there is none."""
    if gguf_path(path) is not None:
        return "vision towers of GGUF files are not read: take the checkpoint in Hugging Face layout"
    fields = read_fields(path)
    names = fields.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    family = VISION_FAMILIES.get(name)
    if family is None:
        around = name in WRAPPERS or fields.get("vision_config") is not None
        return (
            f"the vision tower of {name} is not supported, only its text" if around else "the model has no vision tower"
        )
    stored = WeightFiles(path).locate()
    if not any(tensor.startswith(tuple(family.prefixes)) for tensor in stored):
        return "the checkpoint has the language model's tensors alone, without those of its vision tower"
    config = family.read(fields, ModelConfig.from_dir(path))
    if config is None:
        return "config.json describes no vision tower: vision_config is null"
    return Tower(path, family, fields, config)
