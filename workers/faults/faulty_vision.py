"""Wraps a vision tower with planned faults: each part of an image is a call of the runner."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from workers.engine.runner import NotFiniteError
from workers.vision.encoder import ImageEncoding, VisionEncoder
from workers.vision.patches import ImagePatches


class FaultyVision:
    """Implements `workers.vision.encoder.VisionEncoder` around another one. `enter` carries out the faults at the start
    of a call, and returns whether its rows are NaN; `leave` raises if planned."""

    def __init__(self, tower: VisionEncoder, enter: Callable[[], bool], leave: Callable[[], None]) -> None:
        self._tower = tower
        self._enter = enter
        self._leave = leave

    @property
    def width(self) -> int:
        """That of the wrapped tower."""
        return self._tower.width

    @property
    def max_patches(self) -> int:
        """That of the wrapped tower."""
        return self._tower.max_patches

    def begin(self, image: ImagePatches) -> ImageEncoding:
        """Begin without a fault."""
        return _FaultyEncoding(self._tower.begin(image), self._enter, self._leave)

    def memory(self) -> dict[str, int]:
        """Pass through to the wrapped tower."""
        return self._tower.memory()


class _FaultyEncoding:
    def __init__(self, encoding: ImageEncoding, enter: Callable[[], bool], leave: Callable[[], None]) -> None:
        self._encoding = encoding
        self._enter = enter
        self._leave = leave
        self._nan = False

    @property
    def parts(self) -> int:
        return self._encoding.parts

    def advance(self) -> bool:
        self._nan |= self._enter()
        done = self._encoding.advance()
        self._leave()
        return done

    def rows(self) -> NDArray[np.float32]:
        if self._nan:
            raise NotFiniteError
        return self._encoding.rows()

    def close(self) -> None:
        self._encoding.close()
