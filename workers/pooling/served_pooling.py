"""The pooling of a served model: vectors or scores of texts, or neither."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from workers.pooling.pair_template import PairTemplate
from workers.pooling.pooler import Project, ScorePooler, TextClassifier, VectorPooler
from workers.pooling.pooling import Pooling


@dataclass(frozen=True, slots=True)
class ServedPooling:
    """The pooling of a model, its prompts, and its classifier."""

    width: int = 0
    """Numbers of a vector; 0 if the model makes none."""
    pooling: Pooling = field(default_factory=lambda: Pooling("last"))
    project: Project | None = None
    """The layers after the pooling."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that are put before a text, by their names."""
    default_prompt: str = ""
    """The name of the one that is put before a text for which none is named; empty for none."""
    classifier: TextClassifier | None = None
    labels: int = 0
    """The labels of the classifier."""
    label_names: tuple[str, ...] = ()
    """The names of the labels, of one that takes single texts."""
    label_function: str = ""
    """The function by which its logits become probabilities: see `workers.pooling.pooler.activated`."""
    pairs: bool = False
    """The classifier takes pairs of texts."""
    generates: bool = True
    """The model generates text as well."""
    template: PairTemplate | None = None
    """The form of pairs, of a decoder; None is that of the tokenizer."""
    max_tokens: int = 0
    """Tokens of a text that the model was trained for, as its files say; 0 is the context."""

    def vector_pooler(self, dimensions: int, normalize: bool | None) -> VectorPooler:
        """Return a new pooler of vectors. None normalizes them as the checkpoint says."""
        pooling = self.pooling if normalize is None else replace(self.pooling, normalize=normalize)
        return VectorPooler(pooling, dimensions=dimensions, project=self.project)

    def score_pooler(self, *, activate: bool, probabilities: bool = False) -> ScorePooler:
        """Return a new pooler of scores or, with `probabilities`, of those of the labels, of a model with a
        classifier."""
        assert self.classifier is not None
        activation = self.classifier.activation if activate else ""
        return ScorePooler(self.classifier, self.label_function if probabilities else activation)


NO_POOLING = ServedPooling()
"""That of a model whose runner returns no hidden states."""
