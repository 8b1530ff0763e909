"""The pooling of a checkpoint: which hidden states make the vector of a text."""

from dataclasses import dataclass
from typing import Literal

PoolingKind = Literal["cls", "last", "mean"]
"""The hidden state of the first token, of the last one, or the mean of all."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """The vector of a text: hidden states of its tokens, after the model's last norm."""

    kind: PoolingKind
    normalize: bool = True
    """The vector has length 1."""
