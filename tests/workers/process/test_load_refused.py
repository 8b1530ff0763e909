"""Every way in which a load can never succeed: it is refused at once, and the text says why and what to do.

A worker whose load raises anything else is started again, five times, with pauses between.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.quantized import requantize
from workers.errors import LoadRefused
from workers.process.loading import load
from workers.process.spec import WorkerSpec

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")

NORM, DOWN = "model.norm.weight", "model.layers.0.mlp.down_proj.weight"
BOTH, IREE, MLX = ("iree", "mlx"), ("iree",), ("mlx",)
Spoil = Callable[[Path], object]


def tensors(**changed: Any) -> Spoil:
    """Change tensors of a checkpoint, by their names without dots; None removes one."""

    def spoil(path: Path) -> None:
        stored = load_file(path / "model.safetensors")
        found = {name: tensor for name, tensor in stored.items() if changed.get(_key(name), ...) is not None}
        found |= {name: changed[_key(name)] for name in found if _key(name) in changed}
        write_safetensors(path / "model.safetensors", found)

    return spoil


def _key(name: str) -> str:
    return name.replace(".", "_")


def fields(**changed: Any) -> Spoil:
    """Change fields of config.json."""

    def spoil(path: Path) -> None:
        file = path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    return spoil


def text(name: str, content: str) -> Spoil:
    return lambda path: (path / name).write_text(content)


def missing_shard(path: Path) -> None:
    (path / "model.safetensors").unlink()
    make_checkpoint(path, sharded=True)
    next(path.glob("*-of-*.safetensors")).unlink()


def awq_mixture(path: Path) -> None:
    requantize(make_checkpoint(path, "mixtral", tied=False), "awq")


def truncated(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])


@dataclass(frozen=True)
class Way:
    """One way in which a load cannot succeed."""

    words: str
    """A regular expression that its text matches."""
    spoil: Spoil = field(default=lambda path: None)
    """The change of a sound checkpoint."""
    spec: dict[str, Any] = field(default_factory=dict)
    backends: tuple[str, ...] = BOTH


WAYS: dict[str, Way] = {
    "no directory": Way(r"config.json: there is no such file; a model is a directory", shutil.rmtree),
    "config.json is not JSON": Way("config.json: is not JSON", text("config.json", "{")),
    "an unknown architecture": Way("'MambaForCausalLM'.* only one of", fields(architectures=["MambaForCausalLM"])),
    "an unknown type of weights": Way("dtype: 'float8_e4m3fn' is not", fields(torch_dtype="float8_e4m3fn")),
    "an unknown quantization": Way("quant_method: 'hqq' is not", fields(quantization_config={"quant_method": "hqq"})),
    "a field that changes the model": Way("logits_scaling: 8.0 is not supported", fields(logits_scaling=8.0)),
    "no weights": Way("model.safetensors: there is no such", lambda path: (path / "model.safetensors").unlink()),
    "weights in another format": Way(
        "pytorch_model.bin is in a format",
        lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"),
    ),
    "a truncated file": Way("is not a safetensors file", truncated),
    "a missing shard": Way("of-00003.safetensors: there is no such file", missing_shard),
    "a missing tensor": Way(re.escape(NORM), tensors(model_norm_weight=None)),
    "a tensor that is left over": Way("model.layers.1.* is not part of a llama model", fields(num_hidden_layers=1)),
    "a vector of another shape": Way(re.escape(NORM), tensors(model_norm_weight=np.zeros(3, np.float32))),
    "a matrix of another shape": Way(
        re.escape(DOWN), tensors(model_layers_0_mlp_down_proj_weight=np.zeros((64, 64), np.float32))
    ),
    "integers as weights": Way("model.norm.weight: type I32 is not", tensors(model_norm_weight=np.zeros(64, np.int32))),
    "weights that are not finite": Way(
        "logits are NaN or infinite",
        tensors(model_norm_weight=np.full(64, np.nan, np.float32)),
        backends=MLX,
    ),
    "a damaged tokenizer": Way("tokenizer.json: is not a tokenizer", text("tokenizer.json", "{}")),
    "a damaged chat template": Way("chat_template: .* does not compile", text("chat_template.jinja", "{% if %}")),
    "an end that is not a token": Way("eos_token_id: 'x' is neither", fields(eos_token_id="x")),
    "a context beyond the model's": Way("max_position_embeddings: is 2048, less", spec={"context": 4096}),
    "a context without an answer": Way("context: 1 token leaves no room.* take 2", spec={"context": 1}),
    "too little memory for the KV cache": Way("kv_bytes: 10 bytes hold 0 tokens", spec={"kv_bytes": 10}),
    "quantization of a quantized model": Way(
        "leave quantize=int8 out", fields(quantization={"bits": 4, "group_size": 32}), {"quantize": "int8"}
    ),
    "quantization without whole groups": Way(
        "no matrix has rows of whole groups",
        lambda path: make_checkpoint(path, hidden=48, heads=3, kv_heads=1, ffn=80),
        {"quantize": "int8"},
    ),
    "an unknown device": Way("device: 'tpu' .*has .*local-task|device: 'tpu' .*--device", spec={"device": "tpu"}),
    "a device that is not there": Way(
        "device: 'cuda://99' cannot be opened.* NVIDIA GPU.*baton doctor", spec={"device": "cuda://99"}, backends=IREE
    ),
    "MLX on a GPU that is not there": Way(
        "device: 'gpu' is not .* set --device cpu.*baton doctor", spec={"device": "gpu"}, backends=MLX
    ),
    "GPTQ on MLX": Way("'gptq' is not .*--backend iree", lambda path: requantize(path, "gptq"), backends=MLX),
    "a mixture in AWQ on MLX": Way("'awq' with a mixture .*--backend iree", awq_mixture, backends=MLX),
    "quantization on a GPU": Way(
        "has no products with int4 weights", spec={"device": "generic-task", "quantize": "int4"}, backends=IREE
    ),
    "a mixture on a GPU": Way(
        "experts of mixtral run on CPUs only",
        lambda path: make_checkpoint(path, "mixtral", tied=False),
        {"device": "generic-task"},
        IREE,
    ),
    "a cache folder that cannot be made": Way(
        "cannot keep .*set --cache-dir", spec={"cache_dir": "/proc/none"}, backends=IREE
    ),
    "a cache folder in a file": Way("cannot keep .*set --cache-dir", spec={"cache_dir": __file__}, backends=IREE),
}
EACH = [pytest.param(way, backend, id=f"{backend}-{name}") for name, way in WAYS.items() for backend in way.backends]


def spec_of(way: Way, backend: str, folder: Path) -> WorkerSpec:
    path = make_checkpoint(folder / "model")
    way.spoil(path)
    usual = {"device": "cpu" if backend == "mlx" else "", "context": 48, "cache_dir": str(folder)}
    return WorkerSpec("worker", "model", str(path), backend=backend, max_batch_size=1, **(usual | way.spec))


@pytest.mark.parametrize(("way", "backend"), EACH)
def test_what_can_never_load_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, backend: str
) -> None:
    monkeypatch.setattr("mlx.core.is_available", lambda device: False)  # no GPU
    with pytest.raises(LoadRefused, match=way.words):
        load(spec_of(way, backend, tmp_path), lambda *_: None)
