"""Random weights for checkpoints of tests."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[Any]]
NamedTensors = Iterator[tuple[str, NDArray[Any]]]


class RandomWeights:
    """Samples from one generator, in the order of the calls."""

    def __init__(self, rng: np.random.Generator, *, centred: bool) -> None:
        """`centred` norms have one added to their weights."""
        self.rng = rng
        self._centred = centred

    def matrix(self, rows: int, columns: int, gain: float) -> NDArray[Any]:
        sampled: NDArray[Any] = self.rng.standard_normal((rows, columns)) * gain / columns**0.5
        return sampled.astype(np.float32)

    def norm(self, size: int, gain: float = 1.0) -> NDArray[Any]:
        sampled = gain * (1.0 + 0.1 * self.rng.standard_normal(size)).astype(np.float32)
        return sampled - np.float32(1.0) if self._centred else sampled

    def bias(self, size: int) -> NDArray[Any]:
        return (0.2 * self.rng.standard_normal(size)).astype(np.float32)


LayerTensors = Callable[[Mapping[str, Any], int, RandomWeights], NamedTensors]
"""The tensors of one layer, or of a part of it, by its number, named within the layer, for a config.json."""
