"""Pairs of models for sparse prefill, and what a prompt costs them."""

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import make_checkpoint
from tests.workers.process.harness.gateway_peer import scripted
from workers.checkpoints.checkpoint import ModelConfig
from workers.errors import LoadRefused
from workers.process.spec import WorkerSpec
from workers.process.startup.describe import describe
from workers.process.startup.sparse_plan import SparseRefused, check_sparse, prompt_cost

SMALL: dict[str, Any] = {
    "family": "llama",
    "layers": 1,
    "hidden": 32,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 16,
    "ffn": 32,
}
LARGE: dict[str, Any] = {**SMALL, "layers": 8, "hidden": 256, "ffn": 512}


def refused(tmp_path: Path, model: dict[str, Any], draft: dict[str, Any]) -> str:
    paths = [make_checkpoint(tmp_path / name, **fields) for name, fields in (("model", model), ("draft", draft))]
    spec = WorkerSpec("w0", "m", str(paths[0]), draft_model=str(paths[1]), sparse_prefill=True)
    try:
        check_sparse(spec, ModelConfig.from_dir(paths[0]))
    except SparseRefused as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("model", "draft", "says"),
    [
        (LARGE, SMALL, ""),
        (SMALL, SMALL, "give a draft model that is 8 times smaller"),
        ({**LARGE, "family": "gemma3_text"}, SMALL, "layers with an attention window"),
        (LARGE, {**SMALL, "family": "gemma2", "layers": 2}, "caps its attention"),
    ],
    ids=["fits", "too large", "windows", "capped"],
)
def test_models_that_cannot_do_it_are_refused(
    tmp_path: Path, model: dict[str, Any], draft: dict[str, Any], says: str
) -> None:
    assert says in refused(tmp_path, model, draft)
    assert bool(says) == bool(refused(tmp_path, model, draft))


def test_a_draft_model_is_needed() -> None:
    with pytest.raises(LoadRefused, match=r"^sparse_prefill: .* set --draft-model"):
        describe(scripted(sparse_prefill=True))


def test_the_cost_of_a_prompt_is_that_of_the_matrices_of_a_token(tmp_path: Path) -> None:
    cost = prompt_cost(ModelConfig.from_dir(make_checkpoint(tmp_path / "model", **SMALL)))
    qkv, o, mlp, norms = 32 * (2 + 2) * 16, 32 * 32, 3 * 32 * 32, 2 * 32
    assert cost.weights == qkv + o + mlp + norms
    assert cost.attention == 2 * 16
    assert cost.of(10) == 10 * cost.weights + 100 * cost.attention
