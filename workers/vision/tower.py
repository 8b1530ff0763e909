"""The vision tower of a checkpoint: whether there is one, its description and its parameters."""

from dataclasses import dataclass
from pathlib import Path

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.wrapper import WRAPPERS
from workers.checkpoints.checkpoint import open_part
from workers.checkpoints.documents import read_fields
from workers.checkpoints.gguf.find import MMPROJ_AUTO, MMPROJ_NONE, gguf_path, projector_path, projectors
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.weight_files import WeightFiles
from workers.vision.config import VisionConfig
from workers.vision.families.family import Sources, VisionFamily
from workers.vision.families.registered_families import VISION_FAMILIES
from workers.vision.projectors.projector import Projector
from workers.vision.projectors.projector_file import ProjectorUnfit
from workers.vision.weights import VisionWeights


@dataclass(frozen=True, slots=True)
class VisionTower:
    """The vision tower of a checkpoint."""

    path: Path
    """The checkpoint, also where the tower has a file of its own."""
    family: VisionFamily
    fields: Fields
    """config.json."""
    config: VisionConfig
    projector: Projector | None = None
    """The tower's own file, beside a language model in GGUF files."""

    def sources(self) -> Sources:
        """Return the tensors of which the parameters are made: their names within the tower's prefixes, or those in its
        own file."""
        return self.family.sources(self.config) if self.projector is None else self.projector.sources(self.config)

    def weights(self) -> VisionWeights:
        """Open the parameters. Raises `CheckpointError` for files that cannot be read, and for a missing tensor."""
        if self.projector is not None:
            return VisionWeights(self.projector.file.path, self.config, self.sources(), self.projector.tensors)
        return VisionWeights(self.path, self.config, self.sources(), open_part(self.path, self.family.prefixes))


def find_tower(path: Path, mmproj: str = MMPROJ_AUTO) -> VisionTower | None:
    """Find the vision tower of a checkpoint; None without one that is supported, as `no_images` explains.

    `mmproj` is the file of the tower of a model in GGUF files, "none", or "auto" for the one beside the model. Raises
    `CheckpointError` for a config.json that cannot be read or has unsupported values, and `ProjectorUnfit` for a file
    that is named and does not fit.
    """
    found = _find(path, mmproj)
    return found if isinstance(found, VisionTower) else None


def no_images(path: Path, mmproj: str = MMPROJ_AUTO) -> str:
    """Return why a checkpoint takes no images, in a sentence's words; empty if it does. Raises what `find_tower`
    raises."""
    found = _find(path, mmproj)
    return found if isinstance(found, str) else ""


def _find(path: Path, mmproj: str) -> VisionTower | str:
    """Return the tower, or why there is none."""
    own = projector_path(path, mmproj)
    if gguf_path(path) is not None:
        return _absent(path, mmproj) if own is None else _in_projector(path, own, named=mmproj != MMPROJ_AUTO)
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
    try:
        model = ModelConfig.from_dir(path)
    except CheckpointError as error:
        return f"the language model is not described, without which no tower is read: {error}"
    config = family.read(fields, model)
    if config is None:
        return "config.json describes no vision tower: vision_config is null"
    return VisionTower(path, family, fields, config)


def _absent(path: Path, mmproj: str) -> str:
    """Return why a model in GGUF files has no tower."""
    if mmproj == MMPROJ_NONE:
        return "the projector of images is left out by --mmproj none"
    file = gguf_path(path)
    assert file is not None  # the caller has looked
    found = projectors(each.name for each in file.parent.glob("*.gguf"))
    if found:
        return (
            f"several projectors of images are beside {file.name}: name one of them with --mmproj: {', '.join(found)}"
        )
    return "a GGUF file has no vision tower in itself, and no mmproj file is beside it: name one with --mmproj"


def _in_projector(path: Path, own: Path, *, named: bool) -> VisionTower | str:
    """Return the tower in a file of its own, or why one that nobody named does not fit: it may be another model's.

    Raises `ProjectorUnfit` for one that is `named`, and `CheckpointError` for a damaged one.
    """
    try:
        projector = Projector.open(path, own)
        family = VISION_FAMILIES[projector.fields.values["architectures"][0]]
        config = family.read(projector.fields, ModelConfig.from_dir(path))
        assert config is not None  # the fields have a tower
        projector.check(config)
    except ProjectorUnfit as error:
        if named:
            raise
        return f"the projector beside the model does not fit it: {error}"
    return VisionTower(path, family, projector.fields, config, projector)
