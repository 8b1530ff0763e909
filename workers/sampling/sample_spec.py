"""How the next token of one row is sampled: the request's parameters, its position, and what is done to its logits."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from protocol.request import Sampling


class LogitEdits(Struct, frozen=True, gc=False):
    """What is changed of some of a row's logits, each token named once: arrays of one length, made for one sample.

    A logit x becomes (x + bias) * factor - minus, the factor being `up` where x + bias is positive and else `down`.
    """

    tokens: NDArray[np.int32]
    bias: NDArray[np.float32]
    """-inf rules a token out."""
    up: NDArray[np.float32]
    down: NDArray[np.float32]
    minus: NDArray[np.float32]


class SampleSpec(Struct, frozen=True, gc=False):
    """How to sample one token: the noise is keyed by (sampling.seed, position), `position` being the index in the
    whole sequence (prompt and answer) of the token that is sampled.

    The logits are changed by `edits`, then limited to what `mask` allows; both are made by
    `workers.engine.logits_processors`.
    """

    sampling: Sampling
    position: int
    edits: LogitEdits | None = None
    mask: NDArray[np.uint32] | None = None
    """[ceil(vocab_size / 32)]: bit i % 32 of word i // 32 allows token i; at least one token is allowed."""
