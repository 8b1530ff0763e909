"""Random parameters of vision towers, and random images."""

import math

import numpy as np
from numpy.typing import NDArray

from workers.vision.config import VisionConfig
from workers.vision.parameters import parameter_shapes
from workers.vision.patches import ImagePatches

Parameters = dict[str, NDArray[np.float32]]


def random_parameters(config: VisionConfig, seed: int = 0) -> Parameters:
    rng = np.random.default_rng(seed)

    def values(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if name.endswith(".clip"):
            return np.array([-0.8, 0.8, -1.5, 1.5], np.float32)
        noise = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            return 0.1 * noise + np.float32(name.endswith((".weight", ".scale")))
        return noise * np.float32(shape[-1] ** -0.5)

    return {name: values(name, shape) for name, shape in parameter_shapes(config).items()}


def random_image(
    config: VisionConfig, rows: int, columns: int, *, windows: bool = False, seed: int = 0
) -> ImagePatches:
    """An image of so many groups of patches; with `windows` each has two or three groups."""
    side = math.isqrt(config.group)
    rng, count = np.random.default_rng(seed), rows * columns * config.group
    grid = np.stack(np.meshgrid(np.arange(rows * side), np.arange(columns * side), indexing="ij"), -1)
    places = grid.reshape(rows, side, columns, side, 2).swapaxes(1, 2).reshape(count, 2).astype(np.int32)
    groups = np.arange(rows * columns)
    return ImagePatches(
        rng.standard_normal((count, config.patch_values), dtype=np.float32),
        (rows * side, columns * side),
        places,
        b"image",
        np.repeat((groups * 2 // 5).astype(np.int32), config.group) if windows else None,
        np.roll(groups, 2).astype(np.int32) if windows else None,
        (rows, columns),
    )
