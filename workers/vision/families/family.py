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
from workers.vision.preparation.settings import Settings

Array = NDArray[Any]
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}
"""By transformers' names."""


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a parameter in a checkpoint."""

    tensors: tuple[str, ...]
    """The names of the tensors that it is made of, within the tower's prefixes; empty for what the checkpoint lacks."""
    change: Callable[..., Array] | None = None
    """Makes the parameter of the tensors; None if it is the only one, unchanged."""


Sources = dict[str, Source]
"""By the canonical names of parameters (`workers.vision.config`)."""


@dataclass(frozen=True, slots=True)
class VisionFamily:
    """What a family's towers have in common."""

    prefixes: Mapping[str, str]
    """Prefixes of the tower's tensors, with those that `sources` has: as `Wrapper.inside`, the longer ones first."""
    read: Callable[[Fields, ModelConfig], VisionConfig | None]
    """Reads config.json, whose language model is described by the second argument; None if there is no tower. Raises
    `CheckpointError`."""
    sources: Callable[[VisionConfig], Sources]
    prepare: Callable[[Settings], Preparer]
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


def head_size(fields: Fields, name: str, hidden: int, heads: int) -> int:
    """Return the lanes of a head. Raises `CheckpointError` if heads do not divide the hidden size into even parts."""
    if hidden % (2 * heads):
        raise fields.error(name, f"{heads} heads do not divide a hidden size of {hidden} into even parts")
    return hidden // heads


def renamed(names: Mapping[str, str], *, biased: bool = True) -> Sources:
    """Return the sources of modules that have other names, for their weights and, if `biased`, their biases."""
    endings = (".weight", ".bias") if biased else (".weight",)
    return {module + end: Source((stored + end,)) for module, stored in names.items() for end in endings}


def third(index: int) -> Callable[[Array], Array]:
    """Return a function that takes queries, keys or values out of their fused matrix or bias."""

    def take(tensor: Array) -> Array:
        return np.split(tensor, 3)[index] if len(tensor) % 3 == 0 else tensor

    return take


def ones(size: int) -> Source:
    """The weights of a norm that has none."""
    return Source((), lambda: np.ones(size, np.float32))


def zeros(size: int) -> Source:
    """A bias that the checkpoint lacks."""
    return Source((), lambda: np.zeros(size, np.float32))


def flat_kernel(tensor: Array) -> Array:
    """Flatten a convolution over patches to [outputs, patch_values], channels first; MLX's layout has them last."""
    if tensor.ndim > 2 and tensor.shape[-1] == 3 != tensor.shape[1]:
        tensor = np.moveaxis(tensor, -1, 1)
    return tensor.reshape(len(tensor), -1)
