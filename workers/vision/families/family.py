"""The description of a family of vision towers, and of the places of its parameters in checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.fields import Fields
from workers.vision.config import Activation, VisionConfig
from workers.vision.preparation.preparer import Preparer
from workers.vision.preparation.settings import PreparationSettings

Array = NDArray[Any]
CHANNELS = 3
"""The channels of an image: red, green and blue."""
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}
"""By transformers' names."""


@dataclass(frozen=True, slots=True)
class ParameterSource:
    """The place of a parameter in a checkpoint."""

    tensors: tuple[str, ...]
    """The names of the tensors that it is made of, within the tower's prefixes; empty for what the checkpoint lacks."""
    change: Callable[..., Array] | None = None
    """Makes the parameter of the tensors; None if it is the only one, unchanged."""


Sources = dict[str, ParameterSource]
"""By the canonical names of parameters (`workers.vision.config`)."""


@dataclass(frozen=True, slots=True)
class VisionFamily:
    """The properties of a family's towers."""

    prefixes: Mapping[str, str]
    """Prefixes of the tower's tensors, with those that `sources` has: as `Wrapper.inside`, the longer ones first."""
    read: Callable[[Fields, ModelConfig], VisionConfig | None]
    """Reads config.json, whose language model is described by the second argument; None if there is no tower. Raises
    `CheckpointError`."""
    sources: Callable[[VisionConfig], Sources]
    prepare: Callable[[PreparationSettings], Preparer]
    """Reads the preprocessing. Raises `CheckpointError`."""


def activation(fields: Fields, name: str, default: str) -> Activation:
    """Read an activation. Raises `CheckpointError` for one that is not supported."""
    value = fields.get(name, default)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise fields.error(name, f"{value!r} is not supported for images, only {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]


def required(fields: Fields, name: str) -> Fields:
    """Return a section. Raises `CheckpointError` if it is missing."""
    section = fields.section(name)
    if section is None:
        raise fields.error(name, "is missing")
    return section


def check_channels(fields: Fields, name: str = "num_channels", older: str | None = None) -> None:
    """Check that a tower takes `CHANNELS`, by a field or an `older` name of it. Raises `CheckpointError`."""
    default = CHANNELS if older is None else fields.get(older, CHANNELS)
    if fields.get(name, default) != CHANNELS:
        raise fields.error(name, f"is not {CHANNELS}, which is not supported")


def head_size(fields: Fields, name: str, hidden: int, heads: int) -> int:
    """Return the lanes of a head. Raises `CheckpointError` if heads do not divide the hidden size into even parts."""
    if hidden % (2 * heads):
        raise fields.error(name, f"{heads} heads do not divide a hidden size of {hidden} into even parts")
    return hidden // heads


def renamed(names: Mapping[str, str], *, biased: bool = True) -> Sources:
    """Return the sources of modules that have other names, for their weights and, if `biased`, their biases."""
    endings = (".weight", ".bias") if biased else (".weight",)
    return {module + end: ParameterSource((stored + end,)) for module, stored in names.items() for end in endings}


def third(index: int) -> Callable[[Array], Array]:
    """Return a function that takes queries, keys or values out of their fused matrix or bias."""

    def take(tensor: Array) -> Array:
        return np.split(tensor, 3)[index] if len(tensor) % 3 == 0 else tensor

    return take


def ones(size: int) -> ParameterSource:
    """The weights of a norm that has none."""
    return ParameterSource((), lambda: np.ones(size, np.float32))


def zeros(size: int) -> ParameterSource:
    """A bias that the checkpoint lacks."""
    return ParameterSource((), lambda: np.zeros(size, np.float32))


def flat_kernel(tensor: Array) -> Array:
    """Flatten a convolution over patches to [outputs, patch_values], channels first; MLX's layout has them last."""
    if tensor.ndim > 2 and tensor.shape[-1] == 3 != tensor.shape[1]:
        tensor = np.moveaxis(tensor, -1, 1)
    return tensor.reshape(len(tensor), -1)


def llava_prefixes() -> dict[str, str]:
    """Return the prefixes of towers and projectors of LLaVA's kind: as published, and as transformers has them in
    memory since 4.52."""
    outer = ("", "model.")
    towers = {f"{each}vision_tower.vision_model.": "tower." for each in outer}
    towers |= {f"{each}vision_tower.": "tower." for each in outer}
    return towers | {f"{each}multi_modal_projector.": "projector." for each in outer}


def chosen_layers(fields: Fields, layers: int, default: int) -> int:
    """Read which layer's output the projector takes, and return how many of `layers` are computed for it. -1 is the
    last layer, and 0 the embedding. Raises `CheckpointError` for several, and for one that is not there."""
    chosen = fields.get("vision_feature_layer", default)
    if isinstance(chosen, list) and len(chosen) == 1:
        (chosen,) = chosen
    if not isinstance(chosen, int) or isinstance(chosen, bool) or not -layers <= chosen <= layers or chosen == 0:
        raise fields.error("vision_feature_layer", f"{chosen!r} is not the number of one of {layers} layers")
    return chosen if chosen > 0 else layers + 1 + chosen


def square_side(fields: Fields, name: str, default: int, most: int) -> int:
    """Read a side in pixels: a number, or a list of two equal ones. Raises `CheckpointError`."""
    value = fields.get(name)
    if not isinstance(value, list):
        return fields.integer(name, default, most=most)
    if len(value) != 2 or value[0] != value[1]:
        raise fields.error(name, f"{value!r} is not one side: both sides must be equal")
    return Fields(fields.file, {name: value[0]}).integer(name, most=most)
