"""End-of-sequence ids of the configs end the answers of a model without a tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.request import Limits
from tests.checkpoints import make_checkpoint
from workers.checkpoints.eos_ids import read_eos_ids
from workers.local_model import LocalModel
from workers.process.spec import WorkerSpec

PROMPT = [5, 6, 7]


def without_tokenizer(path: Path, **files: Any) -> Path:
    """A checkpoint without a tokenizer, whose configs are changed."""
    make_checkpoint(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        (path / name).unlink()
    config = json.loads((path / "config.json").read_text())
    for name, fields in files.items():
        content = config | fields if name == "config" else fields
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def answer(path: Path, **limits: Any) -> tuple[tuple[int, ...], str]:
    spec = WorkerSpec("w", "m", str(path), backend="mlx", device="cpu", max_batch_size=1, context=48)
    with LocalModel.open(spec) as model:
        result = model.generate(PROMPT, limits=Limits(max_tokens=8, **limits))
    return result.tokens, result.reason


@pytest.mark.parametrize("file", ["config", "generation_config"])
@pytest.mark.parametrize("many", [False, True], ids=["id", "list"])
def test_without_a_tokenizer_an_answer_ends_at_the_ids_of_the_configs(tmp_path: Path, file: str, many: bool) -> None:
    pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")
    tokens, reason = answer(without_tokenizer(tmp_path / "endless", config={"eos_token_id": None}))
    assert (len(tokens), reason) == (8, "length")
    end = next(token for token in tokens[1:] if token != tokens[0])
    expected = tokens[: tokens.index(end) + 1]
    ids = {"config": {"eos_token_id": None}} | {file: {"eos_token_id": [end, 511] if many else end}}
    path = without_tokenizer(tmp_path / "ending", **ids)
    assert answer(path) == (expected, "stop")
    assert answer(path, ignore_eos=True) == (tokens, "length")


def test_the_ids_of_both_configs_are_collected(tmp_path: Path) -> None:
    path = without_tokenizer(tmp_path, config={"eos_token_id": 3}, generation_config={"eos_token_id": [4, 5]})
    assert read_eos_ids(path) == {3, 4, 5}
