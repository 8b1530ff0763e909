"""Heads of cross-encoders; tests/reference/encoders/test_encoders.py compares their scores with transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.tiny_encoders import make_encoder
from workers.checkpoints.json_files import CheckpointError
from workers.pooling.classifier import Classifier

IDENTITY = "torch.nn.modules.linear.Identity"


def test_an_encoder_without_a_head_has_no_classifier(tmp_path: Path) -> None:
    assert Classifier.of(make_encoder(tmp_path, "bert")) is None
    assert Classifier.of(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("labels", "fields", "activation"),
    [
        (1, {}, "sigmoid"),
        (2, {}, "identity"),
        (1, {"sbert_ce_default_activation_function": IDENTITY}, "identity"),
        (2, {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
    ],
)
def test_the_activation_is_that_of_cross_encoders(
    tmp_path: Path, labels: int, fields: dict[str, Any], activation: str
) -> None:
    classifier = Classifier.of(make_encoder(tmp_path, "bert", labels=labels, **fields))
    assert classifier is not None
    assert (classifier.activation, classifier.labels) == (activation, labels)


@pytest.mark.parametrize(
    ("family", "fields", "error"),
    [
        ("bert", {"sentence_transformers": {"activation_fn": "torch.nn.ReLU"}}, "activation_fn: 'torch.nn.ReLU'"),
        ("bert", {"sbert_ce_default_activation_function": 3}, "sbert_ce_default_activation_function: 3"),
        ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling: 'max' is not supported"),
        ("modernbert", {"classifier_activation": "mish"}, "classifier_activation: 'mish' is not supported"),
    ],
)
def test_what_is_not_supported_is_refused(tmp_path: Path, family: str, fields: dict[str, Any], error: str) -> None:
    with pytest.raises(CheckpointError, match=error):
        Classifier.of(make_encoder(tmp_path, family, labels=1, **fields))


@pytest.mark.parametrize("labels", [0, 1])
def test_an_encoder_that_states_to_score_by_logits_is_refused(tmp_path: Path, labels: int) -> None:
    path = make_encoder(tmp_path, "bert", labels=labels)
    modules = [{"type": f"sentence_transformers.{kind}", "path": ""} for kind in ("Transformer", "LogitScore")]
    (path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="LogitScore is not supported for an encoder, which has no logits"):
        Classifier.of(path)
