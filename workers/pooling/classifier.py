"""The head of a cross-encoder: the scores of a pair of texts, from the hidden states of its tokens."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.checkpoint import open_weights
from workers.checkpoints.documents import read_fields
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.encoders.reading import is_encoder, read_encoder
from workers.checkpoints.encoders.tensors import prefix_of
from workers.checkpoints.weights import Weights
from workers.pooling.checkpoint_pooling import refuse_logit_score

Rows = NDArray[np.float32]
ScoreActivation = Literal["sigmoid", "identity"]
SCORE_ACTIVATIONS: Mapping[str, ScoreActivation] = {"Sigmoid": "sigmoid", "Identity": "identity"}
"""By the names of torch's classes, without their package."""
_ERF = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS: Mapping[str, Callable[[Rows], Rows]] = {
    "gelu": lambda x: (x * (1 + _ERF(x / math.sqrt(2))) / 2).astype(np.float32),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}
"""Those of ModernBERT's `classifier_activation` that are supported."""


@dataclass(frozen=True, slots=True, eq=False)
class Classifier:
    """A sequence classifier: one pooled hidden state, a dense layer with an activation, a norm if there is one, and the
    scores."""

    dense: Rows
    """float32 [hidden, hidden]."""
    dense_bias: Rows | None
    act: Callable[[Rows], Rows]
    out: Rows
    """float32 [labels, hidden]."""
    out_bias: Rows | None
    activation: ScoreActivation
    """The function that sentence-transformers' `CrossEncoder` applies to the scores by default."""
    mean: bool = False
    """The mean of all hidden states is read, otherwise the first one."""
    norm: tuple[Rows, Rows | None, float] | None = None
    """The weight, bias and epsilon of the LayerNorm behind the activation."""
    last: ClassVar[bool] = False

    @classmethod
    def of(cls, checkpoint: Path) -> "Classifier | None":
        """Read the head of a checkpoint; None for one without a sequence classifier. Raises `CheckpointError`, also for
        an encoder that states to score by logits."""
        if not is_encoder(checkpoint):
            return None
        refuse_logit_score(checkpoint)
        config = read_encoder(checkpoint)
        if not config.labels:
            return None
        fields, weights = read_fields(checkpoint), open_weights(checkpoint)
        activation = score_activation(fields, config.labels)
        hidden = config.hidden_size
        if config.family == "modernbert":
            return cls._of_modernbert(config, fields, weights, activation)
        # RoBERTa's head has its own dense layer, the others take that of the pooler.
        roberta = config.family in ("camembert", "roberta", "xlm-roberta")
        first, last = ("classifier.dense", "classifier.out_proj") if roberta else ("", "classifier")
        first = first or f"{prefix_of(config, weights)}pooler.dense"
        return cls(
            dense=_take(weights, f"{first}.weight", (hidden, hidden)),
            dense_bias=_take(weights, f"{first}.bias", (hidden,)),
            act=np.tanh,
            out=_take(weights, f"{last}.weight", (config.labels, hidden)),
            out_bias=_take(weights, f"{last}.bias", (config.labels,)),
            activation=activation,
        )

    @classmethod
    def _of_modernbert(
        cls, config: EncoderConfig, fields: Fields, weights: Weights, activation: ScoreActivation
    ) -> "Classifier":
        hidden = config.hidden_size
        pooling = fields.get("classifier_pooling", "cls")
        if pooling not in ("cls", "mean"):
            raise fields.error("classifier_pooling", f"{pooling!r} is not supported, only cls and mean")
        act = fields.get("classifier_activation", "gelu")
        if act not in ACTIVATIONS:
            raise fields.error("classifier_activation", f"{act!r} is not supported, only {', '.join(ACTIVATIONS)}")
        biased = fields.flag("classifier_bias", False)
        norm_bias = _take(weights, "head.norm.bias", (hidden,)) if config.norm_bias else None
        return cls(
            dense=_take(weights, "head.dense.weight", (hidden, hidden)),
            dense_bias=_take(weights, "head.dense.bias", (hidden,)) if biased else None,
            act=ACTIVATIONS[act],
            out=_take(weights, "classifier.weight", (config.labels, hidden)),
            out_bias=_take(weights, "classifier.bias", (config.labels,)),
            activation=activation,
            mean=pooling == "mean",
            norm=(_take(weights, "head.norm.weight", (hidden,)), norm_bias, config.eps),
        )

    @property
    def labels(self) -> int:
        """The number of scores."""
        return len(self.out)

    def scores(self, hidden_rows: Rows) -> Rows:
        """Return the logits, float32 [labels], of a text or pair by the hidden states of all its tokens, float32
        [tokens, hidden]."""
        pooled = hidden_rows.mean(0, dtype=np.float32) if self.mean else hidden_rows[0]
        x = self.dense @ pooled
        x = self.act(x if self.dense_bias is None else x + self.dense_bias)
        if self.norm is not None:
            weight, bias, eps = self.norm
            x = x - x.mean()
            x = x / np.sqrt((x * x).mean() + np.float32(eps)) * weight
            x = x if bias is None else x + bias
        logits: Rows = self.out @ x
        return logits if self.out_bias is None else logits + self.out_bias


def score_activation(fields: Fields, labels: int) -> ScoreActivation:
    """Read the activation that sentence-transformers wrote; by default it is a sigmoid for a single score."""
    section = fields.section("sentence_transformers")
    name = None if section is None else section.get("activation_fn")
    where, field = (section or fields, "activation_fn") if name is not None else (fields, LEGACY_ACTIVATION)
    name = fields.get(LEGACY_ACTIVATION) if name is None else name
    if name is None:
        return "sigmoid" if labels == 1 else "identity"
    return named_activation(where, field, name)


def named_activation(fields: Fields, field: str, name: object) -> ScoreActivation:
    """Return the activation that a class of torch is. Raises `CheckpointError` for one that is not supported."""
    short = name.rpartition(".")[2] if isinstance(name, str) else ""
    if short not in SCORE_ACTIVATIONS:
        raise fields.error(field, f"{name!r} is not supported, only Sigmoid and Identity")
    return SCORE_ACTIVATIONS[short]


LEGACY_ACTIVATION = "sbert_ce_default_activation_function"


def _take(weights: Weights, name: str, shape: tuple[int, ...]) -> Rows:
    return weights.take(name, shape).astype(np.float32)
