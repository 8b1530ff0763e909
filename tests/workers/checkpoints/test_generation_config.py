"""Sampling parameters that generation_config.json recommends."""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.bounds import MAX_TOP_K
from workers.checkpoints.generation_config import read_sampling_defaults
from workers.checkpoints.json_files import CheckpointError


def written(path: Path, **fields: Any) -> Path:
    (path / "generation_config.json").write_text(json.dumps(fields))
    return path


def test_a_checkpoint_without_the_file_recommends_nothing(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"eos_token_id": 2, "max_length": 20, "temperature": None}, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05},
        ),
        ({"min_p": 0.1, "temperature": 0, "top_p": 1}, {"min_p": 0.1, "temperature": 0.0, "top_p": 1.0}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}),
    ],
    ids=str,
)
def test_recommended_values_are_read(tmp_path: Path, fields: dict[str, Any], expected: dict[str, float]) -> None:
    assert read_sampling_defaults(written(tmp_path, **fields)) == expected


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("temperature", -0.1),
        ("temperature", 101),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.01),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("top_k", 1.5),
        ("top_k", -2),
        ("top_k", MAX_TOP_K + 1),
    ],
)
def test_a_value_that_no_request_could_have_is_refused_by_name(tmp_path: Path, field: str, wrong: Any) -> None:
    with pytest.raises(CheckpointError, match="--generation-config none") as refused:
        read_sampling_defaults(written(tmp_path, **{field: wrong}))
    assert refused.value.field == field
