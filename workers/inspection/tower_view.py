"""Describes the vision tower of a checkpoint, and maps its tensors."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from workers.checkpoints.architectures.wrapper import name_inside
from workers.checkpoints.gguf.find import MMPROJ_AUTO
from workers.checkpoints.json_files import CheckpointError
from workers.inspection.tensor_map import StoredTensor, TensorMap
from workers.vision.image_refused import ImageRefused
from workers.vision.parameters import parameter_shapes
from workers.vision.processor import ImageProcessor
from workers.vision.projectors.projector import Projector
from workers.vision.tower import VisionTower, find_tower, no_images

SIDE = 1024
"""Width and height of the image whose tokens are stated: a megapixel."""


@dataclass(frozen=True, slots=True)
class TowerView:
    """The images that a checkpoint takes, as far as is known before it is loaded."""

    tower: str = ""
    """The sizes of the tower; empty if there is none that is supported."""
    parameters: int = 0
    image_tokens: int = 0
    """Tokens of an image of 1024 x 1024 pixels."""
    problem: str = ""
    """Why the checkpoint takes no images."""
    file: str = ""
    """The tower's own file, beside a model in GGUF files; empty if it is in those of the model."""

    @classmethod
    def of(cls, path: Path, mmproj: str = MMPROJ_AUTO) -> "TowerView":
        """Describe the tower by the checkpoint's descriptions; what is not supported is the `problem`."""
        try:
            tower = find_tower(path, mmproj)
            if tower is None:
                return cls(problem=no_images(path, mmproj))
            shapes = parameter_shapes(tower.config)
            tokens = ImageProcessor.of_tower(tower).tokens_of_size(SIDE, SIDE)
        except (CheckpointError, ImageRefused) as error:
            return cls(problem=str(error))
        stored = tower.sources()
        count = sum(math.prod(shape) for name, shape in shapes.items() if stored[name].tensors)
        file = "" if tower.projector is None else str(tower.projector.file.path)
        return cls(_sizes(tower), count, tokens, file=file)


def map_tower(path: Path, mmproj: str, mapped: TensorMap) -> TensorMap:
    """Return the map with the tensors of the tower read into its parameters, and those that it lacks; unchanged for a
    checkpoint without a tower that is supported."""
    try:
        tower = find_tower(path, mmproj)
    except CheckpointError:
        return mapped
    if tower is None:
        return mapped
    ours: dict[str, list[str]] = {}
    sources = tower.sources()
    for name in parameter_shapes(tower.config):
        for tensor in sources[name].tensors:
            ours.setdefault(tensor, []).append(_short(name))
    if tower.projector is not None:
        return TensorMap((*mapped.tensors, *_in_projector(tower.projector, ours)))
    found = []
    for each in mapped.tensors:
        inside = name_inside(each.name, tower.family.prefixes)
        to = () if inside is None or each.use != "ignored" else tuple(ours.pop(inside, ()))
        found.append(replace(each, use="read", to=to, why="") if to else each)
    return TensorMap((*found, *(_missing(name, to) for name, to in ours.items())))


def _in_projector(projector: Projector, ours: dict[str, list[str]]) -> Iterator[StoredTensor]:
    """List the tensors of a tower's own file, and those that it lacks."""
    for name, tensor in projector.file.model.tensors.items():
        to = tuple(ours.pop(name, ()))
        why = "" if to else "of a part that is not served"
        yield StoredTensor(name, tensor.type.name, tensor.shape, "read" if to else "ignored", to, why)
    yield from (_missing(name, to) for name, to in ours.items())


def _missing(name: str, to: list[str]) -> StoredTensor:
    return StoredTensor(name, "", (), "missing", tuple(to), "the tensor is missing, which images need")


def _short(name: str) -> str:
    """Return the name of a parameter with the number of its layer in front: `3.vision q`."""
    *outer, module, kind = name.split(".")
    layer = f"{outer.pop()}." if outer and outer[-1].isdigit() else ""
    words = [each for each in outer if each != "layers"]
    return f"{layer}vision {' '.join([*words, module] if kind == 'weight' else [*words, module, kind])}"


def _sizes(tower: VisionTower) -> str:
    config = tower.config
    taps = f", {len(config.taps)} of them merged for the language model's first layers" if config.taps else ""
    if not config.layers:
        return f"patches are projected, without layers; hidden size {config.hidden}; {config.group} patch a token"
    heads = f"{config.heads} heads of {config.head_dim} lanes"
    return f"{config.layers} layers{taps}; hidden size {config.hidden}; {heads}; {config.group} patches a token"
