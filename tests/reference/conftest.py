"""The reference implementation: Hugging Face transformers on torch, on the CPU in float32."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.checkpoints import LLAMA3_SCALING, make_checkpoint, write_safetensors
from tests.families import FAMILIES
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.engine.runner import Runner
from workers.load_options import LoadOptions, Progress
from workers.precision import Dtype

CASES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-untied-sharded": {"family": "llama", "tied": False, "sharded": True},
    "llama-llama3-rope": {"family": "llama", "rope_scaling": LLAMA3_SCALING},
    "llama-biased": {"family": "llama", "attention_bias": True},
    "mistral-untied": {"family": "mistral", "tied": False},
    "qwen2-biased-all-kv-heads": {"family": "qwen2", "kv_heads": 4},
    "qwen3-one-kv-head": {"family": "qwen3", "tied": False, "kv_heads": 1},
    "llama-4-bit": {"family": "llama", "quantized_bits": 4},
    "llama-8-bit": {"family": "llama", "quantized_bits": 8, "group_size": 64},
}
BACKENDS = ("mlx", "iree")
TOO_SLOW = {("iree", "llama-biased")}
"""Its graphs would be a fourth set to compile, a quarter of this folder's time; qwen2 has three of its four biases."""
SCORED = "llama"
"""The case whose logits IREE's scoring graph computes; that all graphs agree is tests/workers/iree/test_gate.py's."""
PAIRS = [(backend, case) for case in CASES for backend in BACKENDS if (backend, case) not in TOO_SLOW]
CONTEXT = 128
SLOTS = 1
PROMPT = tuple(map(int, np.random.default_rng(7).integers(3, 500, 107)))
"""Longer than the llama3 RoPE's original context of 64."""


class Reference:
    """One checkpoint in transformers, with eager attention."""

    def __init__(self, path: Path, dtype: Any = None) -> None:
        """`dtype` is one of torch's, float32 by default."""
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        self._torch = torch
        fields = json.loads((path / "config.json").read_text())
        family = FAMILIES.get(fields.pop("model_type"))
        served_as = None if family is None else family.served_as
        config = None if served_as is None else AutoConfig.for_model(served_as, **fields)
        model = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype or torch.float32, attn_implementation="eager"
        )
        self._model = model.eval()

    def logits(self, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        """float32 [len(tokens), vocab]."""
        with self._torch.no_grad():
            logits: NDArray[np.float32] = self._model(self._torch.tensor([tokens])).logits[0].float().numpy()
        return logits

    def hidden(self, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        """The hidden states after the last norm: float32 [len(tokens), hidden]."""
        with self._torch.no_grad():
            states: NDArray[np.float32] = (
                self._model.base_model(self._torch.tensor([tokens])).last_hidden_state[0].numpy()
            )
        return states

    def log_likelihoods(self, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        """The log-probability of every token but the first, given those before it: float32 [len(tokens) - 1]."""
        with self._torch.no_grad():
            logs = self._model(self._torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
        picked: NDArray[np.float32] = logs.numpy()[np.arange(len(tokens) - 1), list(tokens[1:])]
        return picked

    def greedy(self, prompt: tuple[int, ...], count: int) -> list[int]:
        """`count` tokens, each from a whole forward: the reference has no cache that could be wrong."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tuple(tokens))[-1].argmax()))
        return tokens[len(prompt) :]


def dequantize(path: Path, target: Path) -> Path:
    """Write the checkpoint with plain weights, for an implementation without the quantized format."""
    target.mkdir()
    for file in path.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, target)
    config = json.loads((path / "config.json").read_text())
    config = {name: value for name, value in config.items() if not name.startswith("quantization")}
    (target / "config.json").write_text(json.dumps(config))
    write_safetensors(target / "model.safetensors", dict(open_weights(path)))
    return target


def load_runner(
    backend: str, path: Path, cache_dir: Path, context: int = CONTEXT, *, score: bool = False, dtype: Dtype = "float32"
) -> Runner:
    """The backend's runner on the CPU, of the text alone; skips when the backend is not installed. "generic" is IREE's
    with the graphs of GPUs.

    IREE's has the fewest graphs that serve everything, and with `score` the one that scores. Nothing comes in the
    background: which graphs a test meets would depend on how fast they are compiled.
    """
    device = {"mlx": "cpu", "iree": "local-task", "generic": "generic-task"}[backend]
    options = LoadOptions(device=device, dtype=dtype, slots=SLOTS, context=context, cache_dir=cache_dir, vision=False)
    quiet: Progress = lambda phase, done, total: None  # noqa: E731
    config = ModelConfig.from_dir(path)
    if backend == "mlx":
        pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")
        from workers.mlx.runner import MlxRunner

        return MlxRunner.load(path, config, options, quiet)
    pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
    from tests.compiling import compiling_here
    from workers.iree.build.compile_client import Building
    from workers.iree.runner import IreeRunner

    with compiling_here():
        runner = IreeRunner.load(path, config, options, quiet, background=False)
        if score:
            builder = runner.graphs.builder
            with Building(builder, [(f"score_{builder.plan.score_chunk}",)], 1) as building:
                runner.graphs.open(building, building.groups, quiet)
    return runner


@pytest.fixture(scope="session", autouse=True)
def torch() -> Any:
    """Torch with one thread: the models are tiny, and the machine is shared."""
    reason = "the reference needs torch: pip install -e '.[reference]'"
    torch = pytest.importorskip("torch", reason=reason)
    pytest.importorskip("transformers", reason=reason)
    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: make_checkpoint(root / name, **options) for name, options in CASES.items()}


@pytest.fixture(scope="session")
def references(torch: Any, checkpoints: dict[str, Path]) -> dict[str, Reference]:
    plain = {
        name: dequantize(path, path.with_name(name + "-plain")) if "bit" in name else path
        for name, path in checkpoints.items()
    }
    return {name: Reference(path) for name, path in plain.items()}


@dataclass(frozen=True)
class Pair:
    """The same checkpoint on a runner and in transformers."""

    runner: Runner
    reference: Reference


@pytest.fixture(scope="session", params=PAIRS, ids="-".join)
def pair(
    request: Any, checkpoints: dict[str, Path], references: dict[str, Reference], cache_dir: Path
) -> Iterator[Pair]:
    backend, case = request.param
    runner = load_runner(backend, checkpoints[case], cache_dir, score=case == SCORED)
    yield Pair(runner, references[case])
    runner.close()
