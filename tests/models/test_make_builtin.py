"""The stages of the training continue from the exported weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from models import builtin_path
from models.make_builtin import PLANS, make
from models.training import Shape

TOY = Shape(layers=1, hidden=32, heads=2, kv_heads=1, head_dim=16, ffn=64, vocabulary=2048)
SHORT = tuple(replace(plan, steps=1, batch=1, length=384, warmup=1) for plan in PLANS)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(builtin_path() / "tokenizer.json"))


@pytest.mark.exhaustive
def test_a_later_stage_gives_what_all_stages_give(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole = make("toy", tmp_path / "whole", TOY, SHORT, tokenizer)
    early = make("toy", tmp_path / "parts", TOY, SHORT[:2], tokenizer)
    (tmp_path / "parts" / "score.json").write_text(json.dumps(early))
    rest = make("toy", tmp_path / "parts", TOY, SHORT, tokenizer, 2)
    assert [part["plan"] for part in rest["parts"]] == [part["plan"] for part in whole["parts"]]
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "parts")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("ended", [1, 3])
def test_a_model_must_have_ended_the_stage_before(ended: int, tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "score.json").write_text(json.dumps({"parts": [{}] * ended}))
    with pytest.raises(SystemExit, match=f"continue it from stage {ended + 1}"):
        make("toy", tmp_path, TOY, SHORT, tokenizer, 2)
