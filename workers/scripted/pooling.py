"""The pooling of scripted models, and a classifier without weights."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workers.pooling.pooling import Pooling
from workers.pooling.served_pooling import ServedPooling

ScriptedPooling = Literal["vectors", "encoder", "pairs", "labels"]
"""`vectors`: the model generates, and makes embeddings; `encoder`: it makes embeddings alone; `pairs`: it is an encoder
that scores pairs of texts; `labels`: one that gives texts or pairs two labels."""
PROMPTS = {"document": "passage: ", "query": "query: "}


class ScriptedClassifier:
    """Its only logit is the sum of all hidden states."""

    activation = "sigmoid"
    last = False

    def scores(self, hidden: NDArray[np.float32], /) -> NDArray[np.float32]:
        """See `workers.pooling.pooler.TextClassifier`."""
        return np.array([hidden.astype(np.float64).sum()], np.float32)


class ScriptedLabels:
    """Its logits are 0, and the sum of all hidden states."""

    activation = "identity"
    last = False

    def scores(self, hidden: NDArray[np.float32], /) -> NDArray[np.float32]:
        """See `workers.pooling.pooler.TextClassifier`."""
        return np.array([0.0, hidden.astype(np.float64).sum()], np.float32)


def scripted_pooling(kind: ScriptedPooling, width: int) -> ServedPooling:
    """Return the pooling of a scripted model, whose hidden states have so many numbers."""
    if kind == "pairs":
        return ServedPooling(classifier=ScriptedClassifier(), labels=1, pairs=True, generates=False)
    if kind == "labels":
        return ServedPooling(
            classifier=ScriptedLabels(),
            labels=2,
            label_names=("other", "spam"),
            label_function="softmax",
            pairs=True,
            generates=False,
        )
    return ServedPooling(width, Pooling("mean"), prompts=PROMPTS, generates=kind == "vectors")
