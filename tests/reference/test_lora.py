"""Adapters of requests beside transformers on torch, where a module adds alpha / r B A x, as PEFT defines it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.checkpoints import make_checkpoint
from tests.reference.conftest import Reference
from tests.workers.checkpoints.lora.lora_files import ALL, make_lora
from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Chunk
from workers.load_options import LoadOptions

pytestmark = pytest.mark.reference

TOKENS = tuple(map(int, np.random.default_rng(3).integers(3, 500, 24)))
CASES = {
    "llama": ALL,
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "glm4": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
    "gemma2": ALL,
}
TOLERANCE = 2e-4


def adapt(reference: Reference, adapter: Path) -> None:
    """Let the modules that an adapter names add alpha / r B A x."""
    config, tensors = (
        json.loads((adapter / "adapter_config.json").read_text()),
        load_file(adapter / "adapter_model.safetensors"),
    )
    modules = dict(reference._model.named_modules())
    for name in [name for name in tensors if ".lora_A." in name]:
        a, b = tensors[name], tensors[name.replace("lora_A", "lora_B")]

        def add(_: Any, given: Any, out: Any, a: Any = a, b: Any = b) -> Any:
            return out + config["lora_alpha"] / config["r"] * (given[0] @ a.T @ b.T)

        modules[name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")].register_forward_hook(add)


@pytest.mark.parametrize(
    ("backend", "family"),
    [
        ("mlx", "llama"),
        ("mlx", "phi3"),
        *(pytest.param("mlx", family, marks=pytest.mark.exhaustive) for family in ("glm4", "gemma2")),
        *(pytest.param("iree", family, marks=pytest.mark.exhaustive) for family in CASES),
    ],
)
def test_logits_are_those_of_peft(tmp_path: Path, cache_dir: Path, backend: str, family: str) -> None:
    path = make_checkpoint(tmp_path / "model", family, layers=2)
    adapter = make_lora(tmp_path / "adapter", path, targets=CASES[family])
    device = {"mlx": "cpu", "iree": "local-task"}[backend]
    options = LoadOptions(
        device=device,
        dtype="float32",
        slots=1,
        context=32,
        cache_dir=cache_dir,
        lora_modules=(("other", make_lora(tmp_path / "other", path, targets=CASES[family][:1])), ("one", adapter)),
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
    reference = Reference(path)
    plain = reference.logits(TOKENS)
    adapt(reference, adapter)
    expected, own = reference.logits(TOKENS), runner.logits(Chunk(0, TOKENS, 0, 0, adapter=2))
    runner.close()
    assert abs(plain - expected).max() > 0.1
    np.testing.assert_allclose(own, expected, atol=TOLERANCE)
