"""LoRA adapters of mlx-lm, applied when a model is loaded."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm import utils
from mlx_lm.tuner.utils import linear_to_lora_layers

from tests.checkpoints import make_checkpoint
from tests.workers.mlx.alone.lone_checkpoints import make_lone_checkpoint
from tests.workers.mlx.conftest import Load, quiet
from tests.workers.process.harness.gateway_peer import scripted
from workers.checkpoints.checkpoint import CheckpointError
from workers.checkpoints.lone_config import LoneConfig
from workers.engine.runner import Chunk
from workers.errors import LoadRefused
from workers.load_options import LoadOptions
from workers.mlx.alone.runner import LoneRunner
from workers.process.startup.describe import describe, hello

KEYS = ["self_attn.q_proj", "mlp.down_proj"]
CHUNK = Chunk(0, tuple(range(5, 25)), 0, 0)


def make_adapter(directory: Path, model: Path, *, layers: int = -1, **parameters: Any) -> Path:
    """Make an adapter of random weights for a checkpoint, as `mlx_lm.lora` writes it."""
    directory.mkdir()
    given = {"rank": 3, "scale": 2.0, "dropout": 0.0, "keys": KEYS, **parameters}
    (directory / "adapter_config.json").write_text(
        json.dumps({"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": given})
    )
    with mx.stream(mx.Device(mx.cpu)):
        loaded, _ = utils.load_model(model, lazy=True)
        linear_to_lora_layers(loaded, layers, given)
        keys = iter(mx.random.split(mx.random.key(1), 1000))
        tensors = {
            name: mx.random.normal(array.shape, scale=0.3, key=next(keys))
            for name, array in tree_flatten(loaded.parameters())
            if "lora_" in name
        }
        mx.save_safetensors(str(directory / "adapters.safetensors"), tensors)
    return directory


def of_mlx_lm(model: Path, adapter: Path) -> Any:
    """Logits of mlx-lm itself with the adapter."""
    with mx.stream(mx.Device(mx.cpu)):
        loaded, _ = utils.load_model(model, lazy=True)
        loaded = utils.load_adapters(loaded, str(adapter))
        return np.array(loaded(mx.array([CHUNK.tokens]))[0])


@pytest.mark.parametrize("keys", [["self_attn.q_proj"], ["mlp.down_proj", "self_attn.v_proj"]], ids=["one", "some"])
@pytest.mark.parametrize("bits", [None, 4])
def test_logits_are_those_of_mlx_lm(tmp_path: Path, load: Load, bits: int | None, keys: list[str]) -> None:
    path = make_checkpoint(tmp_path / "model", quantized_bits=bits)
    adapter = make_adapter(tmp_path / "adapter", path, keys=keys)
    plain, runner = load(path), load(path, adapter=adapter)
    actual = runner.logits(CHUNK)
    np.testing.assert_allclose(actual, of_mlx_lm(path, adapter), atol=2e-4)
    assert abs(actual - plain.logits(CHUNK)).max() > 0.1
    assert runner.capabilities.rows_format != plain.capabilities.rows_format
    parts = [runner.logits(Chunk(1, CHUNK.tokens[at : at + 5], at, at)) for at in range(0, 20, 5)]
    assert (np.concatenate(parts) == actual).all()


def test_a_hybrid_model_has_one(tmp_path: Path, load: Load) -> None:
    path = make_checkpoint(tmp_path / "model", family="lfm2", fields={"block_dim": 64})
    adapter = make_adapter(tmp_path / "adapter", path, keys=["conv.in_proj", "self_attn.v_proj"])
    np.testing.assert_allclose(load(path, adapter=adapter).logits(CHUNK), of_mlx_lm(path, adapter), atol=2e-4)


def test_a_model_that_runs_alone_has_one(tmp_path: Path) -> None:
    path = make_lone_checkpoint(tmp_path / "model", "internlm3")
    adapter = make_adapter(tmp_path / "adapter", path, layers=1)
    options = LoadOptions(device="cpu", slots=1, context=64, cache_dir=path, adapter=adapter)
    runner = LoneRunner.load(path, LoneConfig.from_dir(path), options, quiet)
    np.testing.assert_allclose(runner.logits(CHUNK), of_mlx_lm(path, adapter), atol=1e-5)
    runner.close()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"fine_tune_type": "dora"}, r"fine_tune_type: 'dora' is not supported, only lora"),
        ({"lora_parameters": None}, "lora_parameters: is missing"),
        ({"lora_parameters": {"rank": 3}}, "lora_parameters.scale: None is not a number"),
        (
            {"lora_parameters": {"rank": 4097, "scale": 2.0}},
            "lora_parameters.rank: 4097 is not an integer from 1 to 4096",
        ),
        ({"lora_parameters": {"rank": 4, "scale": 2.0}}, r"has the shape \(128, 3\), the model needs \(128, 4\)"),
    ],
    ids=str,
)
def test_one_that_does_not_fit_is_refused(tmp_path: Path, load: Load, change: dict[str, Any], problem: str) -> None:
    path = make_checkpoint(tmp_path / "model", layers=2)
    adapter = make_adapter(tmp_path / "adapter", path)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError, match=problem):
        load(path, adapter=adapter)


def test_files_that_are_missing_are_named(tmp_path: Path, load: Load) -> None:
    path = make_checkpoint(tmp_path / "model", layers=2)
    adapter = make_adapter(tmp_path / "adapter", path)
    (adapter / "adapters.safetensors").rename(adapter / "whole.safetensors")
    tensors: dict[str, mx.array] = dict(mx.load(str(adapter / "whole.safetensors")))  # type: ignore[arg-type]
    name = min(tensors)
    mx.save_safetensors(str(adapter / "adapters.safetensors"), tensors | {"model.norm.lora_a": tensors[name]})
    with pytest.raises(CheckpointError, match=r"model\.norm\.lora_a: is not of a linear module of this model"):
        load(path, adapter=adapter)
    del tensors[name]
    mx.save_safetensors(str(adapter / "adapters.safetensors"), tensors)
    with pytest.raises(CheckpointError, match=f"{name}: the tensor is missing"):
        load(path, adapter=adapter)
    for content, problem in (
        (dict.fromkeys(tensors, mx.zeros((3, 3), mx.int32)), "has the type mlx.core.int32, not one of real numbers"),
        ({}, r"adapters\.safetensors: has no tensors"),
    ):
        mx.save_safetensors(str(adapter / "adapters.safetensors"), content)
        with pytest.raises(CheckpointError, match=problem):
            load(path, adapter=adapter)
    (adapter / "adapters.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match=r"adapters\.safetensors: cannot be read"):
        load(path, adapter=adapter)
    (adapter / "adapters.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"adapters\.safetensors: there is no such file"):
        load(path, adapter=adapter)


def test_it_is_part_of_the_model(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model", layers=2)
    adapter = make_adapter(tmp_path / "adapter", path)
    spec = {"backend": "mlx", "device": "cpu", "model_path": str(path)}
    plain, adapted = describe(scripted(**spec)), describe(scripted(**spec, adapter=str(adapter)))
    assert plain.digest != adapted.digest
    assert plain.model_digest != adapted.model_digest
    greetings = [hello(scripted(**spec, adapter=given), adapted, 1) for given in ("", str(adapter))]
    assert [greeting.adapter for greeting in greetings] == ["", "adapter"]
    with pytest.raises(LoadRefused, match="adapter: the iree backend applies none: take --backend mlx"):
        describe(scripted(**spec | {"backend": "iree", "device": ""}, adapter=str(adapter)))
    with pytest.raises(LoadRefused, match=r"^adapter: .*adapter_config\.json: there is no such file"):
        describe(scripted(**spec, adapter=str(tmp_path / "none")))
