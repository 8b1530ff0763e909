"""Rows of position tables and angles of RoPE, which the host computes of the places of patches."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.vision.config import VisionConfig
from workers.vision.patches import ImagePatches

Floats = NDArray[np.float32]
TABLE = "positions.weight"
"""The parameter with the table."""
EXTRA = "extra.weight"
"""The parameter with the embedding of the row that is no patch."""
NEWLINE = "newline.weight"
"""The parameter with the embedding at the end of a row of a packed grid."""
HOST = (TABLE, EXTRA, NEWLINE)
"""The parameters that the host alone reads."""


def added(config: VisionConfig, parameters: Mapping[str, NDArray[Any]], patches: ImagePatches) -> Floats | None:
    """Return what is added to the embeddings of patches, float32 [patches, hidden]; None for a tower without a table.

    Raises `ValueError` for a place outside of a table that is not resampled.
    """
    if config.table is None:
        return None
    table = np.asarray(parameters[TABLE], np.float32)
    if not config.extra:
        return _placed(config, table, patches)
    places = _placed(config, table[1:], patches)
    return np.concatenate([places, table[:1] + np.asarray(parameters[EXTRA], np.float32)])


def check(config: VisionConfig, patches: ImagePatches) -> None:
    """Raise `ValueError` for a place outside of a table that is not resampled."""
    if config.table is None or config.table_kind not in ("fixed", "axes"):
        return
    if patches.grid[0] > config.table[0] or patches.grid[1] > config.table[1]:
        raise ValueError(f"an image of {patches.grid} patches is larger than the table of {config.table} positions")


def values(config: VisionConfig, patches: ImagePatches) -> Floats:
    """Return the numbers of patches as a tower computes them, float32 [rows, patch_values]: with zeros for the row that
    is no patch."""
    missing = np.zeros((int(config.extra), config.patch_values), np.float32)
    return np.concatenate([patches.values, missing]) if config.extra else patches.values


def _placed(config: VisionConfig, table: Floats, patches: ImagePatches) -> Floats:
    assert config.table is not None  # `added` has checked
    rows, columns = patches.places[:, 0], patches.places[:, 1]
    height, width = config.table
    if config.table_kind == "bicubic":
        return _bicubic(table.reshape(height, width, -1), patches)
    if config.table_kind in ("interpolated", "bilinear"):
        aligned = config.table_kind == "interpolated"
        sides = zip(patches.grid, (rows, columns), config.table, strict=True)
        across, down = (_bilinear(place, size, side, aligned) for size, place, side in sides)
        return _weighted(table, across, down, width)
    if config.table_kind == "resized":
        square = table.reshape(height, width, -1)
        vertical, horizontal = (_resampling(side, size) for side, size in zip(config.table, patches.grid, strict=True))
        resized = np.einsum("rh,hwd->rwd", vertical, np.einsum("cw,hwd->hcd", horizontal, square))
        return np.ascontiguousarray(resized[rows, columns], np.float32)
    check(config, patches)
    found: Floats = table[rows * width + columns] if table.ndim == 2 else table[0][rows] + table[1][columns]
    return found


def angles(config: VisionConfig, patches: ImagePatches) -> Floats | None:
    """Return the angles of RoPE, float32 [patches, head_dim / 2]: first those of the row, then those of the column (see
    `VisionConfig.columns_first`). None for a tower without RoPE."""
    if not config.rope_theta:
        return None
    lanes = config.head_dim // 2
    powers = np.arange(0, lanes, 2, dtype=np.float32) / np.float32(lanes)
    if config.rope_alternates:  # [2, lanes / 2], of the row and of the column
        powers = powers + np.array([[0], [1 / lanes]], np.float32)
    frequencies = np.float32(1.0) / np.float32(config.rope_theta) ** powers
    places = patches.places[:, ::-1] if config.columns_first else patches.places
    turned: Floats = (places.astype(np.float32)[..., None] * frequencies).reshape(len(places), lanes)
    return turned


Taps = tuple[NDArray[np.int64], NDArray[np.int64], Floats]
"""The position before each patch, the one behind it, and the weight of the latter."""


def _bilinear(place: NDArray[np.int32], size: int, side: int, aligned: bool) -> Taps:
    """Place patches on an axis of `side` positions, with the corners `aligned` or the borders, in the arithmetic of
    transformers."""
    if aligned:
        source = place.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    else:
        half = np.float32(0.5)
        source = (place.astype(np.float32) + half) * (np.float32(side) / np.float32(size)) - half
    floor = np.floor(source)
    before = floor.astype(np.int64)
    return np.clip(before, 0, side - 1), np.clip(before + 1, 0, side - 1), (source - floor).astype(np.float32)


def _bicubic(table: Floats, patches: ImagePatches) -> Floats:
    """Sample a table [rows, columns, hidden] at patches, as torch's `grid_sample` with `bicubic`, without aligned
    corners and with the positions of the border beyond it."""
    axes = []
    for place, size, side in zip(patches.places.T, patches.grid, table.shape, strict=False):
        one = np.float32(1)
        normal = (place.astype(np.float32) + np.float32(0.5)) / np.float32(size) * np.float32(2) - one
        source = ((normal + one) * np.float32(side) - one) / np.float32(2)
        floor = np.floor(source)
        axes.append(
            [
                (np.clip(floor.astype(np.int64) + tap, 0, side - 1), _cubic(np.abs(source - floor - np.float32(tap))))
                for tap in (-1, 0, 1, 2)
            ]
        )
    total = np.zeros((len(patches.places), table.shape[-1]), np.float32)
    for row, row_weight in axes[0]:
        for column, column_weight in axes[1]:
            total += table[row, column] * (row_weight * column_weight)[:, None]
    return total


def _cubic(distance: Floats) -> Floats:
    """Return the weights of Keys' cubic convolution with a = -0.75, at distances up to 2."""
    a = -0.75
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    weights: Floats = np.where(distance <= 1, near, far).astype(np.float32)
    return weights


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
    normalized: Floats = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return normalized
