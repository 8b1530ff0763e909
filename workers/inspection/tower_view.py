"""Describes the vision tower of a checkpoint, and maps its tensors."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from workers.checkpoints.architectures.wrapper import name_inside
from workers.checkpoints.json_files import CheckpointError
from workers.inspection.tensor_map import StoredTensor, TensorMap
from workers.vision.image_refused import ImageRefused
from workers.vision.parameters import parameter_shapes
from workers.vision.processor import ImageProcessor
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

    @classmethod
    def of(cls, path: Path) -> "TowerView":
        """Describe the tower by the checkpoint's descriptions; what is not supported is the `problem`."""
        try:
            tower = find_tower(path)
            if tower is None:
                return cls(problem=no_images(path))
            shapes = parameter_shapes(tower.config)
            tokens = ImageProcessor.of_tower(tower).tokens_of_size(SIDE, SIDE)
        except (CheckpointError, ImageRefused) as error:
            return cls(problem=str(error))
        stored = tower.family.sources(tower.config)
        count = sum(math.prod(shape) for name, shape in shapes.items() if stored[name].tensors)
        return cls(_sizes(tower), count, tokens)


def map_tower(path: Path, mapped: TensorMap) -> TensorMap:
    """Return the map with the tensors of the tower read into its parameters, and those that it lacks; unchanged for a
    checkpoint without a tower that is supported."""
    try:
        tower = find_tower(path)
    except CheckpointError:
        return mapped
    if tower is None:
        return mapped
    ours: dict[str, list[str]] = {}
    sources = tower.family.sources(tower.config)
    for name in parameter_shapes(tower.config):
        for tensor in sources[name].tensors:
            ours.setdefault(tensor, []).append(_short(name))
    found = []
    for each in mapped.tensors:
        inside = name_inside(each.name, tower.family.prefixes)
        to = () if inside is None or each.use != "ignored" else tuple(ours.pop(inside, ()))
        found.append(replace(each, use="read", to=to, why="") if to else each)
    return TensorMap((*found, *(_missing(name, to) for name, to in ours.items())))


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
