"""Classifiers of decoders, as the files of checkpoints state them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.weights import SafetensorsWeights
from workers.pooling.last_token import last_token_classifier
from workers.text.checkpoint_tokenizer import CheckpointTokenizer

MODULES = [
    {"type": f"sentence_transformers.{kind}", "path": path} for kind, path in (("Transformer", ""), ("LogitScore", "1"))
]


def stated(path: Path, ids: dict[str, Any]) -> Path:
    (path / "modules.json").write_text(json.dumps(MODULES))
    (path / "1").mkdir()
    (path / "1" / "config.json").write_text(json.dumps(ids))
    return path


def test_the_score_is_the_difference_of_two_logits(tmp_path: Path) -> None:
    path = stated(make_checkpoint(tmp_path, "qwen3"), {"true_token_id": 5, "false_token_id": 9})
    classifier = last_token_classifier(path, None)
    assert classifier is not None
    assert (classifier.labels, classifier.activation, classifier.template) == (1, "sigmoid", None)
    head = SafetensorsWeights(path, None)["model.embed_tokens.weight"]
    hidden = np.random.default_rng(1).standard_normal((3, 64), np.float32)
    (score,) = classifier.scores(hidden)
    assert score == pytest.approx(float((head[5] - head[9]) @ hidden[-1]), abs=1e-5)


def test_a_model_that_states_no_tokens_scores_nothing(tmp_path: Path) -> None:
    assert last_token_classifier(make_checkpoint(tmp_path, "qwen3"), None) is None


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ({}, "true_token_id: None is not the id"),
        ({"true_token_id": True}, "true_token_id: True is not the id"),
        ({"true_token_id": 1, "false_token_id": "no"}, "false_token_id: 'no' is not the id"),
        ({"true_token_id": 512}, "are not all tokens of a vocabulary of 512"),
    ],
)
def test_ids_that_are_no_tokens_are_refused(tmp_path: Path, ids: dict[str, Any], error: str) -> None:
    path = stated(make_checkpoint(tmp_path, "qwen3"), ids)
    with pytest.raises(CheckpointError, match=error):
        last_token_classifier(path, None)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"classifier_from_token": []}, "is not a list of one or two tokens"),
        ({"classifier_from_token": ["a", "b"]}, "two tokens are supported with is_original_qwen3_reranker"),
        ({"classifier_from_token": ["a longer text"]}, "is not one token"),
    ],
)
def test_words_that_are_no_tokens_are_refused(tmp_path: Path, fields: dict[str, Any], error: str) -> None:
    path = make_checkpoint(tmp_path, "qwen3", fields=fields)
    with pytest.raises(CheckpointError, match=f"classifier_from_token: .*{error}"):
        last_token_classifier(path, CheckpointTokenizer.from_dir(path))
