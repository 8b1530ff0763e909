"""The pooling of a served checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.bounds import MAX_POOLING_PROMPTS
from workers.checkpoints.json_files import CheckpointError
from workers.pooling.checkpoint_default import default_pooling
from workers.pooling.pair_template import PairTemplate
from workers.pooling.pooling import Pooling
from workers.scripted.pooling import ScriptedClassifier


def write(path: Path, name: str, value: Any) -> None:
    file = path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value))


def test_a_model_that_generates_has_the_last_token(tmp_path: Path) -> None:
    served = default_pooling(tmp_path, 8, generates=True)
    assert (served.width, served.pooling, served.generates) == (8, Pooling("last"), True)
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    assert default_pooling(gguf, 8, generates=True).pooling == Pooling("last")
    assert default_pooling(tmp_path, 8, generates=False).pooling == Pooling("mean")


def test_the_files_of_a_checkpoint_decide(tmp_path: Path) -> None:
    modules = ["Transformer", "Pooling", "Normalize"]
    listed = [
        {"idx": number, "name": str(number), "path": f"{number}_{name}" * bool(number), "type": f"st.models.{name}"}
        for number, name in enumerate(modules)
    ]
    write(tmp_path, "modules.json", listed)
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    prompts = {"query": "Represent this: ", "document": ""}
    write(tmp_path, "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    write(tmp_path, "sentence_bert_config.json", {"max_seq_length": 64})
    served = default_pooling(tmp_path, 8, generates=False)
    assert served.pooling == Pooling("cls")
    assert (served.prompts, served.default_prompt, served.max_tokens) == (prompts, "query", 64)


def test_a_classifier_scores_pairs_and_makes_no_vectors(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"id2label": {"0": "relevant"}})
    served = default_pooling(tmp_path, 8, generates=False, classifier=ScriptedClassifier(), labels=1)
    assert (served.width, served.labels, served.pairs) == (0, 1, True)
    assert (served.label_names, served.label_function) == (("relevant",), "sigmoid")
    template = PairTemplate(None, "")
    ranked = default_pooling(tmp_path, 8, generates=False, classifier=ScriptedClassifier(), labels=1, template=template)
    assert ranked.label_names == (), "its form of a pair has no place for a single text"


def test_too_many_prompts_are_refused(tmp_path: Path) -> None:
    prompts = {str(number): "" for number in range(MAX_POOLING_PROMPTS + 1)}
    write(tmp_path, "config_sentence_transformers.json", {"prompts": prompts})
    with pytest.raises(CheckpointError, match="prompts"):
        default_pooling(tmp_path, 8, generates=True)
    prompts.popitem()
    write(tmp_path, "config_sentence_transformers.json", {"prompts": prompts})
    assert len(default_pooling(tmp_path, 8, generates=True).prompts) == MAX_POOLING_PROMPTS
