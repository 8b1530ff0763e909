"""Random weights of vision towers, and random images."""

import math

import numpy as np
from numpy.typing import NDArray

from workers.vision.config import VisionConfig
from workers.vision.parameters import parameter_shapes
from workers.vision.patches import ImagePatches


def random_parameters(config: VisionConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return parameters to which every part of the tower matters."""
    generator = np.random.default_rng(seed)
    made = {}
    for name, shape in sorted(parameter_shapes(config).items()):
        values = generator.standard_normal(shape)
        if name.endswith(".clip"):
            values = np.array([-1.5, 1.2, -1.1, 1.4])
        elif len(shape) > 1:
            values *= 1.0 if name.startswith("positions") else 1.2 / math.sqrt(shape[-1])
        else:
            values = 1 + 0.2 * values if name.endswith(("weight", "scale")) else 0.2 * values
        made[name] = values.astype(np.float32)
    return made


def random_image(config: VisionConfig, tokens: tuple[int, int], *, window: int = 0, seed: int = 0) -> ImagePatches:
    """Return patches of an image of so many rows and columns of tokens, a multiple of `window` tokens of a window if
    there are any, which then lie in reversed order."""
    side = math.isqrt(config.group)
    places = [
        (row * side + inner // side, column * side + inner % side)
        for row in range(tokens[0])
        for column in range(tokens[1])
        for inner in range(config.group)
    ]
    count = len(places)
    values = np.random.default_rng(seed).standard_normal((count, config.patch_values)).astype(np.float32)
    groups = np.arange(count // config.group, dtype=np.int32)
    return ImagePatches(
        values,
        (tokens[0] * side, tokens[1] * side),
        np.array(places, np.int32),
        b"key",
        np.arange(count, dtype=np.int32) // (window * config.group) if window else None,
        groups[::-1].copy() if window else None,
        tokens,
    )
