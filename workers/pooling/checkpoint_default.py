"""The pooling of a served checkpoint: its files state it, or it is the last token of a model that generates."""

from pathlib import Path

from protocol.bounds import MAX_NAME, MAX_POOLING_PROMPTS
from workers.checkpoints.json_files import CheckpointError
from workers.pooling.checkpoint_pooling import CheckpointPooling
from workers.pooling.label_names import LabelNames
from workers.pooling.pair_template import PairTemplate
from workers.pooling.pooler import TextClassifier
from workers.pooling.served_pooling import ServedPooling


def default_pooling(
    path: Path,
    hidden: int,
    *,
    generates: bool,
    classifier: TextClassifier | None = None,
    labels: int = 0,
    template: PairTemplate | None = None,
) -> ServedPooling:
    """Return the pooling of the checkpoint in `path`, whose hidden states have so many numbers.

    A `classifier` with so many labels scores pairs of texts, in the form of a `template` if there is one, and such a
    model makes no vectors unless its files state a pooling. Raises `CheckpointError` for a pooling that is not
    supported, or names of prompts that are too long.
    """
    if path.is_file():  # a GGUF file, which has no other files beside it
        return ServedPooling(hidden, generates=generates)
    stated = CheckpointPooling.of(path, "last" if generates else "mean")
    prompts = stated.prompts
    if len(prompts) > MAX_POOLING_PROMPTS or any(len(name) > MAX_NAME for name in prompts):
        text = f"must be at most {MAX_POOLING_PROMPTS} texts, with names of at most {MAX_NAME} characters"
        raise CheckpointError(path / "config_sentence_transformers.json", "prompts", text)
    # The form of a pair has no place for a single text.
    named = LabelNames.of(path, labels) if classifier is not None and template is None else LabelNames()
    return ServedPooling(
        0 if classifier is not None and not stated.stated else stated.width(hidden),
        stated.pooling,
        stated.project if stated.dense else None,
        prompts,
        stated.default_prompt,
        classifier,
        labels,
        named.names,
        named.function,
        pairs=classifier is not None,
        generates=generates,
        template=template,
        max_tokens=stated.max_tokens,
    )
