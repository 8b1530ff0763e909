"""What the host computes of the places of patches: the rows of position tables, and the angles of RoPE."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.vision.config import VisionConfig
from workers.vision.patches import ImagePatches

Floats = NDArray[np.float32]
TABLE = "positions.weight"
"""The parameter with the table."""


def added(config: VisionConfig, parameters: Mapping[str, NDArray[Any]], patches: ImagePatches) -> Floats | None:
    """Return what is added to the embeddings of patches, float32 [patches, hidden]; None for a tower without a table.

    Raises `ValueError` for a place outside of a table that is not resampled.
    """
    if config.table is None:
        return None
    table = np.asarray(parameters[TABLE], np.float32)
    rows, columns = patches.places[:, 0], patches.places[:, 1]
    height, width = config.table
    if config.table_kind == "interpolated":
        sides = zip(patches.grid, (rows, columns), config.table, strict=True)
        across, down = (_bilinear(place, size, side) for size, place, side in sides)
        return _weighted(table, across, down, width)
    if config.table_kind == "resized":
        square = table.reshape(height, width, -1)
        vertical, horizontal = (_resampling(side, size) for side, size in zip(config.table, patches.grid, strict=True))
        resized = np.einsum("rh,hwd->rwd", vertical, np.einsum("cw,hwd->hcd", horizontal, square))
        return np.ascontiguousarray(resized[rows, columns], np.float32)
    if patches.grid[0] > height or patches.grid[1] > width:
        raise ValueError(f"an image of {patches.grid} patches is larger than the table of {config.table} positions")
    if config.table_kind == "axes":
        return table[0][rows] + table[1][columns]
    return table[rows * width + columns]


def angles(config: VisionConfig, patches: ImagePatches) -> Floats | None:
    """Return the angles of RoPE, float32 [patches, head_dim / 2]: first those of the row, then those of the column (see
    `VisionConfig.columns_first`). None for a tower without RoPE."""
    if not config.rope_theta:
        return None
    lanes = config.head_dim // 2
    powers = np.arange(0, lanes, 2, dtype=np.float32) / np.float32(lanes)
    frequencies = np.float32(1.0) / np.float32(config.rope_theta) ** powers
    places = patches.places[:, ::-1] if config.columns_first else patches.places
    turned: Floats = (places.astype(np.float32)[..., None] * frequencies).reshape(len(places), lanes)
    return turned


Taps = tuple[NDArray[np.int64], NDArray[np.int64], Floats]
"""Of each patch: the position before it, the one behind it, and the weight of the latter."""


def _bilinear(place: NDArray[np.int32], size: int, side: int) -> Taps:
    """Place patches on an axis of `side` positions, with the corners aligned, in the arithmetic of transformers."""
    source = place.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    floor = np.floor(source)
    before = floor.astype(np.int64)
    return np.clip(before, 0, side - 1), np.clip(before + 1, 0, side - 1), (source - floor).astype(np.float32)


def _weighted(table: Floats, rows: Taps, columns: Taps, width: int) -> Floats:
    total = np.zeros((len(rows[0]), table.shape[1]), np.float32)
    one = np.float32(1)
    for row, row_weight in ((rows[0], one - rows[2]), (rows[1], rows[2])):
        for column, column_weight in ((columns[0], one - columns[2]), (columns[1], columns[2])):
            total += table[row * width + column] * (row_weight * column_weight)[:, None]
    return total


def _resampling(side: int, size: int) -> Floats:
    """The weights of antialiased bilinear resampling of `side` positions to `size`, [size, side]: a triangle as wide as
    a new position, as torch's `interpolate` with `antialias`."""
    scale = side / size
    support = max(scale, 1.0)
    centre = (np.arange(size) + 0.5) * scale
    distance = np.abs(np.arange(side)[None] + 0.5 - centre[:, None]) / support
    weights = np.maximum(0.0, 1.0 - distance)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
