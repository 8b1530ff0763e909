"""The names of labels, and the function by which their logits become probabilities."""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.bounds import MAX_LABELS, MAX_NAME
from workers.checkpoints.json_files import CheckpointError
from workers.pooling.label_names import LabelNames


def names_of(folder: Path, labels: int, **fields: Any) -> LabelNames:
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | fields))
    return LabelNames.of(folder, labels)


@pytest.mark.parametrize(
    ("labels", "kind", "function"),
    [
        (1, None, "sigmoid"),
        (2, None, "softmax"),
        (1, "single_label_classification", "sigmoid"),
        (3, "single_label_classification", "softmax"),
        (3, "multi_label_classification", "sigmoid"),
        (1, "regression", "identity"),
    ],
)
def test_the_function_follows_from_the_problem(tmp_path: Path, labels: int, kind: str | None, function: str) -> None:
    assert names_of(tmp_path, labels, problem_type=kind).function == function


def test_names_that_are_not_stated_are_those_of_transformers(tmp_path: Path) -> None:
    assert names_of(tmp_path, 2).names == ("LABEL_0", "LABEL_1")
    stated = {"1": "no", "0": 7, "2": "x" * (MAX_NAME + 1)}
    assert names_of(tmp_path, 3, id2label=stated).names == ("7", "no", "x" * MAX_NAME)
    assert len(names_of(tmp_path, MAX_LABELS).names) == MAX_LABELS
    assert names_of(tmp_path, MAX_LABELS + 1).names == ()


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("ranking", "'ranking'"), (["a", "list"], r"\['a', 'list'\]"), ("x" * 99, "'" + "x" * 63 + r"\.{3}")],
)
def test_an_unknown_problem_is_refused(tmp_path: Path, kind: object, shown: str) -> None:
    with pytest.raises(CheckpointError, match=f"problem_type: {shown} is not supported, only multi_label"):
        names_of(tmp_path, 2, problem_type=kind)
