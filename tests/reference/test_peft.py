"""Adapters that PEFT itself has made, and those that it refuses to be: the logits are PEFT's."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint
from tests.reference.conftest import Reference
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.engine.runner import Chunk
from workers.load_options import LoadOptions

pytestmark = [
    pytest.mark.reference,
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),  # PEFT asks for it
]

TOKENS = tuple(map(int, np.random.default_rng(3).integers(3, 500, 24)))
TOLERANCE = 2e-4
LINEAR = "all-linear"
CASES: dict[str, dict[str, Any]] = {
    "all": {"target_modules": LINEAR},
    "rslora": {"target_modules": LINEAR, "use_rslora": True},
    "attention": {"target_modules": ["q_proj", "v_proj"], "r": 16, "lora_alpha": 3},
    "patterns": {
        "target_modules": LINEAR,
        "rank_pattern": {r"layers\.0\..*down_proj": 3, "q_proj": 7},
        "alpha_pattern": {"model.layers.1.self_attn.o_proj": 40},
    },
    "layers": {"target_modules": ["k_proj", "up_proj"], "layers_to_transform": [1]},
    "regex": {"target_modules": r".*\.1\.(self_attn\.[kv]|mlp\.down)_proj"},
}
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text", "phi3", "granite", "olmo2")
REFUSED: dict[str, dict[str, Any]] = {
    "use_dora": {"use_dora": True},
    "bias": {"bias": "lora_only"},
    "lora_bias": {"lora_bias": True},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "embed_tokens": {"target_modules": ["embed_tokens"]},
    "lm_head": {"target_modules": ["lm_head"]},
}


def peft_model(reference: Reference, **fields: Any) -> Any:
    """Apply an adapter of PEFT with random weights to a model of transformers."""
    peft = pytest.importorskip("peft", reason="PEFT is not installed: pip install peft")
    import torch

    torch.manual_seed(7)
    given = {"r": 8, "lora_alpha": 12, "init_lora_weights": False, "task_type": "CAUSAL_LM"}
    return peft.get_peft_model(reference._model, peft.LoraConfig(**given | fields)).eval()


@contextmanager
def running(path: Path, adapter: Path, backend: str, cache_dir: Path) -> Iterator[Any]:
    device = {"mlx": "cpu", "iree": "local-task"}[backend]
    modules = (("one", adapter),)
    options = LoadOptions(
        device=device, dtype="float32", slots=1, context=32, cache_dir=cache_dir, lora_modules=modules
    )
    config = ModelConfig.from_dir(path)
    runner: Any
    if backend == "mlx":
        pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")
        from workers.mlx.runner import MlxRunner

        runner = MlxRunner.load(path, config, options, lambda phase, done, total: None)
    else:
        from tests.compiling import compiling_here
        from workers.iree.runner import IreeRunner

        with compiling_here():
            runner = IreeRunner.load(path, config, options, lambda phase, done, total: None, background=False)
    try:
        yield runner
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("backend", "family", "case"),
    [
        *(("mlx", family, "all") for family in FAMILIES),
        *(("mlx", "llama", case) for case in sorted(CASES) if case != "all"),
        pytest.param("iree", "llama", "patterns", marks=pytest.mark.timeout(600)),  # with an empty cache of graphs
    ],
)
def test_logits_are_those_of_an_adapter_that_peft_has_saved(
    tmp_path: Path, cache_dir: Path, backend: str, family: str, case: str
) -> None:
    path = make_checkpoint(tmp_path / "model", family, layers=2)
    reference = Reference(path)
    plain = reference.logits(TOKENS)
    model = peft_model(reference, **CASES[case])
    model.save_pretrained(tmp_path / "adapter")
    expected = reference.logits(TOKENS)
    with running(path, tmp_path / "adapter", backend, cache_dir) as runner:
        own = runner.logits(Chunk(0, TOKENS, 0, 0, adapter=1))
    assert abs(plain - expected).max() > 0.01
    np.testing.assert_allclose(own, expected, atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore")  # PEFT has doubts about most of them, too
@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_is_not_computed_as_peft_does_is_refused_by_name(tmp_path: Path, cache_dir: Path, case: str) -> None:
    path = make_checkpoint(tmp_path / "model", layers=2)
    model = peft_model(Reference(path), **{"target_modules": ["q_proj"]} | REFUSED[case])
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=case), running(path, tmp_path / "adapter", "mlx", cache_dir):
        raise AssertionError("it was loaded")
