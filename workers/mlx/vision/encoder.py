"""The vision encoder on MLX: the computation of an image in parts, each evaluated before the next one begins."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from workers.engine.runner import NotFiniteError
from workers.mlx.vision.tower import Attended, MlxVisionTower
from workers.vision.config import Merger, VisionConfig
from workers.vision.patches import ImagePatches
from workers.vision.positions import values

MAX_PATCHES = 65_536
"""Patches of one image: 16 megapixels in patches of 16."""
Compute = Callable[[], list[mx.array]]
Stage = tuple[float, Compute]
"""The number of operations, and the computation of one block."""
Positions = Callable[[ImagePatches], NDArray[np.float32] | None]


@dataclass(frozen=True, slots=True)
class MlxPartSize:
    """Bounds of a part. They depend on the device alone, so that the bits of an image do not change."""

    rows: int
    """Patches of a block: a part has one at least."""
    operations: float
    """Multiplications and additions, of which a part has no more if it has more than one block."""


@dataclass(frozen=True, slots=True)
class MlxTower:
    """All that an encoder needs of a tower."""

    tower: MlxVisionTower
    added: Positions
    """The values that are added to the embeddings of patches, [patches, hidden]."""
    angles: Positions
    """The angles of RoPE, [patches, head_dim / 2]."""
    size: MlxPartSize
    padding: int = 0
    """The token whose embeddings of layers the rows of images have, for models with such embeddings."""
    newline: NDArray[np.float32] | None = None
    """The embedding at the end of a row of a packed grid."""

    @property
    def config(self) -> VisionConfig:
        """The description of the tower."""
        return self.tower.config


class MlxVisionEncoder:
    """Implements `VisionEncoder`. Owns the tower."""

    def __init__(self, loaded: MlxTower, owned: Callable[[], AbstractContextManager[None]], scale: float = 1.0) -> None:
        """Computes while `owned` is entered. `scale` is what the language model multiplies embeddings by: rows of
        images are divided by it, so that they stand for rows of its table as those of requests do."""
        self._loaded = loaded
        self._owned = owned
        self._scale = scale
        self._open: set[MlxImageEncoding] = set()

    @property
    def width(self) -> int:
        """See `VisionEncoder.width`."""
        return self._loaded.config.width

    @property
    def max_patches(self) -> int:
        """See `VisionEncoder.max_patches`."""
        return MAX_PATCHES

    def begin(self, image: ImagePatches) -> "MlxImageEncoding":
        """Start the computation of an image. Raises `ValueError` for one that the tower cannot take."""
        config = self._loaded.config
        count = len(image.values)
        if not 0 < count <= MAX_PATCHES or count % config.group or not image.fits(count // config.group):
            raise ValueError(
                f"patches: {count} for {image.count} tokens of {config.group}, the tower takes {MAX_PATCHES}"
            )
        if image.values.shape != (count, config.patch_values):
            raise ValueError(f"values: {image.values.shape[1:]} of a patch, the tower takes {config.patch_values}")
        if config.full_layers is not None and image.windows is None:
            raise ValueError("windows: the tower has layers that attend within windows")
        with self._owned():
            encoding = MlxImageEncoding(self._loaded, image, self._owned, self._open.discard, self._scale)
        self._open.add(encoding)
        return encoding

    def memory(self) -> dict[str, int]:
        """Return bytes by purpose."""
        buffers = sum(encoding.nbytes for encoding in self._open)
        return {"vision_weights": self._loaded.tower.nbytes, "vision_buffers": buffers}


class MlxImageEncoding:
    """Implements `ImageEncoding`. Owns the arrays of one image."""

    def __init__(
        self,
        loaded: MlxTower,
        image: ImagePatches,
        owned: Callable[[], AbstractContextManager[None]],
        closed: Callable[["MlxImageEncoding"], None],
        scale: float,
    ) -> None:
        """`closed` is called by `close`, `scale` as for `MlxVisionEncoder`."""
        self._tower, self._image, self._owned, self._closed = loaded.tower, image, owned, closed
        self._scale = np.float32(scale)
        self._newline = None if loaded.newline is None else loaded.newline / self._scale
        self._columns = 1 + len(loaded.config.taps)
        self._patches = values(loaded.config, image)
        count = len(self._patches)
        rows = max(loaded.config.group, loaded.size.rows // loaded.config.group * loaded.config.group)
        self._blocks = [slice(at, min(at + rows, count)) for at in range(0, count, rows)]
        added, angles = loaded.added(image), loaded.angles(image)
        self._added = None if added is None else mx.array(added)
        self._cosines = None if angles is None else mx.array(np.cos(angles))
        self._sines = None if angles is None else mx.array(np.sin(angles))
        self._x: list[mx.array] = [mx.zeros(0)] * len(self._blocks)
        self._attended: list[Attended] = []
        self._keys = self._values = mx.zeros(0)
        self._merged: list[list[mx.array]] = [[] for _ in range(self._columns)]
        self._parts = _parts(list(self._stages(loaded.config)), loaded.size.operations)
        self._done = 0

    @property
    def parts(self) -> int:
        """See `ImageEncoding.parts`."""
        return len(self._parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        held = [*self._x, self._keys, self._values, *(array for column in self._merged for array in column)]
        held += [part for each in self._attended for part in (each.queries, each.keys, each.values)]
        held += [part for part in (self._added, self._cosines, self._sines) if part is not None]
        return sum(int(array.nbytes) for array in held)

    def advance(self) -> bool:
        """Compute the next part, and wait for it. Returns whether it was the last one. Raises `ValueError` behind
        it."""
        if self._done == len(self._parts):
            raise ValueError("parts: all are computed")
        with self._owned():
            mx.eval([stage() for stage in self._parts[self._done]])
        self._done += 1
        return self._done == len(self._parts)

    def rows(self) -> NDArray[np.float32]:
        """See `ImageEncoding.rows`. Raises `ValueError` before the last part."""
        if self._done < len(self._parts):
            raise ValueError(f"parts: {len(self._parts) - self._done} are not computed")
        with self._owned():
            columns = [np.array(mx.concatenate(column)) for column in self._merged]
        made = np.concatenate([columns[0] / self._scale, *columns[1:]], axis=1)
        if not np.isfinite(made).all():
            raise NotFiniteError
        return self._image.arranged(made, self._newline)

    def close(self) -> None:
        """See `ImageEncoding.close`."""
        self._x, self._attended, self._merged, self._parts = [], [], [], []
        self._added = self._cosines = self._sines = None
        self._keys = self._values = mx.zeros(0)
        self._closed(self)

    def _stages(self, config: VisionConfig) -> Iterator[Stage]:
        """Yield the number of operations and the computation of each block of each stage."""
        inside, count = config.heads * config.head_dim, len(self._patches)
        mlp = config.hidden * config.mlp * (3 if config.gated else 2)
        for block in range(len(self._blocks)):
            yield self._cost(block, config.patch_values * config.hidden), partial(self._embed, block)
        for layer in range(config.layers):
            for block in range(len(self._blocks)):
                cost = self._cost(block, 3 * config.hidden * inside)
                yield cost, partial(self._project, layer, block)
            for block in range(len(self._blocks)):
                keys = count if self._sees_all(layer) else self._reach(block).stop - self._reach(block).start
                cost = self._cost(block, config.hidden * inside + mlp + 2 * keys * inside)
                yield cost, partial(self._finish, layer, block)
            if layer in config.taps:
                yield from self._merges(config, config.taps.index(layer))
        yield from self._merges(config, None)

    def _merges(self, config: VisionConfig, tap: int | None) -> Iterator[Stage]:
        merger = config.merger if tap is None or config.tap_merger is None else config.tap_merger
        for block in range(len(self._blocks)):
            if self._blocks[block].start == len(self._image.values):  # of the row that is no patch alone
                continue
            cost = self._cost(block, _merger_operations(config, merger) / config.group)
            yield cost, partial(self._merge, tap, block)

    def _cost(self, block: int, of_row: float) -> float:
        rows = self._blocks[block]
        return 2.0 * (rows.stop - rows.start) * of_row

    def _embed(self, block: int) -> list[mx.array]:
        rows = self._blocks[block]
        added = None if self._added is None else self._added[rows]
        self._x[block] = self._tower.embed(mx.array(self._patches[rows]), added)
        return [self._x[block]]

    def _project(self, layer: int, block: int) -> list[mx.array]:
        if block == 0:
            self._attended = []
        cosines, sines = (None if part is None else part[self._blocks[block]] for part in (self._cosines, self._sines))
        self._attended.append(self._tower.project(layer, self._x[block], cosines, sines))
        made = self._attended[-1]
        return [made.queries, made.keys, made.values]

    def _finish(self, layer: int, block: int) -> list[mx.array]:
        if block == 0:
            self._keys = mx.concatenate([each.keys for each in self._attended], axis=2)
            self._values = mx.concatenate([each.values for each in self._attended], axis=2)
        rows, seen = self._blocks[block], None
        keys, values = self._keys, self._values
        if not self._sees_all(layer):
            windows, reach = self._windows, self._reach(block)
            keys, values = keys[:, :, reach], values[:, :, reach]
            seen = mx.array(windows[rows, None] == windows[None, reach])
        queries = self._attended[block].queries
        self._x[block] = self._tower.finish(layer, self._x[block], queries, keys, values, seen)
        return [self._x[block]]

    def _merge(self, tap: int | None, block: int) -> list[mx.array]:
        patches = len(self._image.values) - self._blocks[block].start  # but for the row that is no patch
        made = self._tower.merge(tap, self._x[block][:patches])
        self._merged[0 if tap is None else 1 + tap].append(made)
        return [made]

    @property
    def _windows(self) -> NDArray[np.int32]:
        assert self._image.windows is not None  # `begin` has checked
        return self._image.windows

    def _sees_all(self, layer: int) -> bool:
        full = self._tower.config.full_layers
        return full is None or layer in full

    def _reach(self, block: int) -> slice:
        """Return the rows of the windows that a block touches."""
        rows, windows = self._blocks[block], self._windows
        first, last = windows[rows.start], windows[rows.stop - 1]
        return slice(int(np.searchsorted(windows, first)), int(np.searchsorted(windows, last, side="right")))


def _merger_operations(config: VisionConfig, merger: Merger) -> float:
    """Return the multiplications for one token."""
    inputs = config.hidden * (config.group if merger.pooling == "concat" else 1)
    operations = 0
    for mix in merger.mixes:
        operations, inputs = operations + inputs * mix.outputs, mix.outputs
    inner = inputs * (2 if merger.gated else 1) + config.output
    return operations + (merger.inner * inner if merger.inner else inputs * config.output)


def _parts(stages: Sequence[Stage], most: float) -> list[list[Compute]]:
    """Group computations into parts of at most so many operations, or of one."""
    parts: list[list[Compute]] = []
    sum_ = most
    for cost, stage in stages:
        if sum_ + cost > most:
            parts.append([])
            sum_ = 0.0
        parts[-1].append(stage)
        sum_ += cost
    return parts
