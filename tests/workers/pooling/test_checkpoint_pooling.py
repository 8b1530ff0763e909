"""Poolings of checkpoints, in the files of sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from workers.checkpoints.json_files import CheckpointError
from workers.pooling.checkpoint_default import default_pooling
from workers.pooling.checkpoint_pooling import CheckpointPooling
from workers.pooling.pooling import Pooling

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}


def write(path: Path, pooling: dict[str, Any], *modules: dict[str, Any], **files: Any) -> Path:
    (path / "modules.json").write_text(json.dumps(modules or [TRANSFORMER, POOLING]))
    (path / "1_Pooling").mkdir(exist_ok=True)
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for name, fields in files.items():
        (path / f"{name}.json").write_text(json.dumps(fields))
    return path


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"word_embedding_dimension": 384}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["lasttoken"]}, "last"),
    ],
)
def test_modes(tmp_path: Path, fields: dict[str, Any], kind: str) -> None:
    found = CheckpointPooling.of(write(tmp_path, fields))
    assert (found.pooling.kind, found.pooling.normalize, found.stated) == (kind, False, True)
    write(tmp_path, fields, TRANSFORMER, POOLING, NORMALIZE)
    assert CheckpointPooling.of(tmp_path).pooling.normalize


def test_without_files_the_pooling_is_the_default(tmp_path: Path) -> None:
    found = CheckpointPooling.of(tmp_path)
    assert (found.pooling, found.dense, found.max_tokens, found.stated) == (Pooling("mean"), (), 0, False)
    assert CheckpointPooling.of(tmp_path, "last").pooling == Pooling("last")


def test_prompts_and_lengths(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "search_query: "}, "default_prompt_name": "query"}
    path = write(tmp_path, {}, config_sentence_transformers=prompts, sentence_bert_config={"max_seq_length": 256})
    found = CheckpointPooling.of(path)
    assert (found.prompts, found.default_prompt, found.max_tokens) == (prompts["prompts"], "query", 256)


DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
REFUSED: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str]] = {
    "after-normalize": ({}, [TRANSFORMER, POOLING, NORMALIZE, DENSE], "type: Dense after Normalize"),
    "control-character": ({}, [TRANSFORMER, {**POOLING, "path": "1\0"}], r"path: '1\\x00' is not a folder"),
    "dense-first": ({}, [TRANSFORMER, DENSE, POOLING], "type: Dense after Transformer is not supported"),
    "logits": ({}, [TRANSFORMER, POOLING, {**DENSE, "type": "LogitScore"}], "type: LogitScore after Pooling"),
    "max": ({"pooling_mode_max_tokens": True}, [], "pooling_mode: max and mean is not supported, only one of cls"),
    "no-pooling": ({}, [TRANSFORMER], "type: has no Pooling module"),
    "none": ({"pooling_mode_mean_tokens": False}, [], "pooling_mode: none is not supported"),
    "other-folder": ({}, [TRANSFORMER, {**POOLING, "path": "../1_Pooling"}], "path: '../1_Pooling' is not a folder"),
    "other-module": ({}, [TRANSFORMER, {**POOLING, "type": "models.WeightedLayerPooling"}], "WeightedLayerPooling"),
    "prompt-left-out": ({"include_prompt": False}, [], "include_prompt: false is not supported"),
    "two-poolings": ({}, [TRANSFORMER, POOLING, POOLING], "type: Pooling after Pooling is not supported"),
    "weightedmean": ({"pooling_mode": "weightedmean"}, [], "pooling_mode: weightedmean is not supported"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, case: str) -> None:
    fields, modules, error = REFUSED[case]
    write(tmp_path, fields, *modules)
    (tmp_path / "2_Dense").mkdir()
    with pytest.raises(CheckpointError, match=error):
        CheckpointPooling.of(tmp_path)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"in_features": 0, "out_features": 4}, "in_features: 0 is not an integer from 1 to 65536"),
        ({"in_features": 65537, "out_features": 4}, "in_features: 65537"),
        (
            {"in_features": 4, "out_features": 4, "activation_function": "torch.nn.modules.activation.GELU"},
            "activation_function: 'torch.nn.modules.activation.GELU' is not supported",
        ),
        (
            {"in_features": 4, "out_features": 4, "activation_function": "theirs.Tanh"},
            "activation_function: 'theirs.Tanh' is not supported, only torch's Identity and Tanh",
        ),
        ({"in_features": 4, "out_features": 4, "bias": "no"}, "bias: 'no' is not true or false"),
        ({"in_features": 4, "out_features": 4, "use_residual": True}, "use_residual: True is not supported"),
        (
            {"in_features": 4, "out_features": 4, "module_input_name": "token_embeddings"},
            "module_input_name: 'token_embeddings' is not supported, only 'sentence_embedding'",
        ),
        ({"in_features": 4, "out_features": 4}, "2_Dense/model.safetensors: there is no such file"),
    ],
)
def test_dense_modules_that_are_not_supported(tmp_path: Path, fields: dict[str, Any], error: str) -> None:
    write(tmp_path, {}, TRANSFORMER, POOLING, DENSE)
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=error):
        CheckpointPooling.of(tmp_path)


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("modules", {}, "is not a list of modules"),
        ("config_sentence_transformers", {"prompts": ["a"]}, "prompts: is not an object of texts"),
        ("config_sentence_transformers", {"default_prompt_name": "a"}, "default_prompt_name: 'a' is not one"),
        ("sentence_bert_config", {"max_seq_length": 0}, "max_seq_length: 0 is not an integer"),
        ("sentence_bert_config", {"max_seq_length": (1 << 24) + 1}, "max_seq_length: 16777217"),
    ],
)
def test_malformed_files(tmp_path: Path, name: str, fields: Any, error: str) -> None:
    (tmp_path / f"{name}.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=error):
        CheckpointPooling.of(tmp_path)


@pytest.mark.parametrize("kinds", [("Transformer",), ("Transformer", "LogitScore")], ids=["classifier", "logits"])
def test_a_cross_encoder_states_no_pooling(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    modules = [{"type": f"sentence_transformers.modules.{kind}", "path": ""} for kind in kinds]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForSequenceClassification"]}))
    assert not CheckpointPooling.of(tmp_path, "last").stated


@pytest.mark.parametrize(
    ("hidden", "inputs", "error"), [(6, (4, 3), "is 4, and its inputs are 6"), (4, (4, 2), "is 2")]
)
def test_dense_modules_of_other_widths_are_refused(
    tmp_path: Path, hidden: int, inputs: tuple[int, int], error: str
) -> None:
    """The first one against the model's hidden size, each other one against the one before it."""
    write(tmp_path, {}, TRANSFORMER, POOLING, DENSE, {**DENSE, "path": "3_Dense"})
    for folder, size in zip(("2_Dense", "3_Dense"), inputs, strict=True):
        (tmp_path / folder).mkdir()
        fields = {"in_features": size, "out_features": 3, "bias": False}
        (tmp_path / folder / "config.json").write_text(json.dumps(fields))
        save_file({"linear.weight": np.zeros((3, size), np.float32)}, tmp_path / folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"in_features: {error}"):
        default_pooling(tmp_path, hidden, generates=False)
