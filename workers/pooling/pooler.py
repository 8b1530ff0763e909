"""Pools hidden states that come in chunks: the vector of a text, or the scores of a classifier. Pure.

The result is the same bits in any chunks. Implements `workers.engine.pooled.pooled_prompt.Pooler`.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.pooling.pooling import Pooling

Project = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Computes the layers after the pooling: float32 [hidden] -> float32 [numbers]."""


class VectorPooler:
    """Makes the embedding of a text."""

    def __init__(self, pooling: Pooling, *, dimensions: int = 0, project: Project | None = None) -> None:
        """Keeps the first `dimensions` numbers, before the vector is normalized (Matryoshka Representation Learning,
        Kusupati et al. 2022); 0 keeps all."""
        self._pooling = pooling
        self._dimensions = dimensions
        self._project = project
        self._count = 0
        self._state: NDArray[np.floating] | None = None
        """The hidden state of the token that is chosen, or the sum of all in float64."""

    def add(self, rows: NDArray[np.float32]) -> None:
        """See `Pooler.add`."""
        match self._pooling.kind:
            case "last":
                self._state = rows[-1].copy()
            case "cls":
                self._state = rows[0].copy() if self._state is None else self._state
            case "mean":
                total = np.zeros(rows.shape[1]) if self._state is None else self._state
                for row in rows:  # one after the other, so that chunks do not change the sum
                    total += row
                self._state = total
        self._count += len(rows)

    def vector(self) -> NDArray[np.float32]:
        """See `Pooler.vector`."""
        assert self._state is not None, "a prompt has tokens"
        mean = self._state / self._count if self._pooling.kind == "mean" else self._state
        vector = mean.astype(np.float32)
        if self._project is not None:
            vector = self._project(vector)
        if self._dimensions:
            vector = vector[: self._dimensions]
        return normalized(vector) if self._pooling.normalize else vector


class TextClassifier(Protocol):
    """The head of a model that classifies texts or pairs of texts, as the poolers need it."""

    @property
    def activation(self) -> str:
        """The name of the activation: `sigmoid`, `softmax`, or another one for none."""

    @property
    def last(self) -> bool:
        """It reads the last hidden state alone."""

    def scores(self, hidden: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Return the logit of each label: float32 [tokens, hidden] -> float32 [labels]."""


class ScorePooler:
    """Makes the scores of a text or a pair of texts."""

    def __init__(self, classifier: TextClassifier, activation: str = "") -> None:
        """`activation`: see `activated`."""
        self._classifier = classifier
        self._activation = activation
        self._chunks: list[NDArray[np.float32]] = []

    def add(self, rows: NDArray[np.float32]) -> None:
        """See `Pooler.add`."""
        self._chunks = [rows[-1:].copy()] if self._classifier.last else [*self._chunks, rows]

    def vector(self) -> NDArray[np.float32]:
        """See `Pooler.vector`."""
        hidden = self._chunks[0] if len(self._chunks) == 1 else np.concatenate(self._chunks)
        return activated(self._classifier.scores(hidden), self._activation)


def normalized(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vector with length 1; that of zeros as it is."""
    wide = vector.astype(np.float64)
    length = float(np.sqrt(np.square(wide).sum()))
    return vector if length == 0 else (wide / length).astype(np.float32)


def activated(logits: NDArray[np.float32], activation: str) -> NDArray[np.float32]:
    """Return logits after an activation, computed in float64. Every other name than `sigmoid` and `softmax` is none."""
    wide = logits.astype(np.float64)
    if activation == "sigmoid":
        wide = 0.5 * (1.0 + np.tanh(0.5 * wide))  # in this form nothing overflows
        return wide.astype(np.float32)
    if activation == "softmax":
        wide = np.exp(wide - wide.max())
        return np.asarray(wide / wide.sum(), np.float32)
    return logits
