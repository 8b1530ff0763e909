"""Layers with keys and values of different shapes, and one that reads those of another, against numpy in float64."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from protocol.request import Sampling
from tests.checkpoints import make_checkpoint
from tests.reference.jax_graphs import JaxGraphs
from tests.workers.iree.conftest import Load
from workers.checkpoints.architectures.parts import KvShape, LayerConfig
from workers.checkpoints.architectures.tensors import tensors
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.weight_size import kv_row_bytes
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.model.kv_layout import CacheLayout
from workers.iree.runner import IreeRunner
from workers.sampling.sample_spec import SampleSpec

SHAPES = (KvShape(2, 16, 16), KvShape(1, 32, 48))
PLAN = (LayerConfig(), LayerConfig(kv_shape=1), LayerConfig(), LayerConfig(kv_shape=1, kv_source=1))
PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(3, 500, 40))
SPEC = SampleSpec(Sampling(), 0)


def grouped(config: ModelConfig) -> ModelConfig:
    return replace(config, plan=PLAN, kv_shapes=SHAPES)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = make_checkpoint(tmp_path_factory.mktemp("groups"), "llama", layers=len(PLAN))
    read = ModelConfig.from_dir
    random, made = np.random.default_rng(1), {}
    for tensor in tensors(grouped(read(path))):
        for name, shape in tensor.sources:
            norm = len(shape) == 1
            made[name] = np.ones(shape, np.float32) if norm else random.normal(0, 0.1, shape).astype(np.float32)
    save_file(made, path / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelConfig, "from_dir", lambda path: grouped(read(path)))
        yield path


@pytest.fixture(scope="module")
def runner(model: Path, load: Load) -> Iterator[IreeRunner]:
    runner = load(model)
    yield runner
    runner.close()


def reference(path: Path, tokens: tuple[int, ...]) -> NDArray[np.float64]:
    """The logits of every token."""
    config = ModelConfig.from_dir(path)
    w = {name: each.astype(np.float64) for name, each in load_file(path / "model.safetensors").items()}
    kept: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}

    def norm(x: NDArray[Any], name: str) -> NDArray[Any]:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_eps) * w[f"{name}.weight"])

    def rotate(x: NDArray[Any]) -> NDArray[Any]:
        """The first 16 lanes of [rows, heads, lanes]: the rotary embedding has as many in all layers."""
        angle = np.arange(len(x))[:, None, None] * 10000.0 ** -(np.arange(8) / 8)
        a, b = x[..., :8], x[..., 8:16]
        turned = [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
        return np.concatenate([*turned, x[..., 16:]], -1)

    x = w["model.embed_tokens.weight"][list(tokens)]
    rows = np.arange(len(tokens))
    for number, layer in enumerate(config.plan):
        name, shape = f"model.layers.{number}.", SHAPES[layer.kv_shape]
        h = norm(x, f"{name}input_layernorm")
        q = rotate((h @ w[f"{name}self_attn.q_proj.weight"].T).reshape(len(x), 4, -1)) * config.attention_scale
        if layer.kv_source is None:
            k, v = ((h @ w[f"{name}self_attn.{kind}_proj.weight"].T).reshape(len(x), shape.heads, -1) for kind in "kv")
            kept[number] = rotate(k), v
        k, v = (np.repeat(each, 4 // shape.heads, 1) for each in kept[config.kv_owner(number)])
        seen = rows[:, None] - rows
        score = np.where((seen >= 0) & (seen < (layer.window or 1 << 30)), np.einsum("qhd,khd->hqk", q, k), -np.inf)
        weight = np.exp(score - score.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", weight / weight.sum(-1, keepdims=True), v)
        x = x + mixed.reshape(len(x), -1) @ w[f"{name}self_attn.o_proj.weight"].T
        h = norm(x, f"{name}post_attention_layernorm")
        gate, up = (h @ w[f"{name}mlp.{kind}_proj.weight"].T for kind in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{name}mlp.down_proj.weight"].T
    return np.asarray(norm(x, "model.norm") @ w["model.embed_tokens.weight"].T)


def generate(runner: IreeRunner, slot: int, count: int, start: int = 0) -> list[int]:
    (token,) = runner.prefill([Chunk(slot, PROMPT[start:], start, start)], [SPEC])
    out: list[Any] = [token]
    for at in range(len(PROMPT), len(PROMPT) + count - 1):
        out += runner.decode([DecodeRow(slot, out[-1], at, at, SPEC)])
    return out


def test_each_shape_has_an_array_and_a_reading_layer_has_none(model: Path) -> None:
    config = ModelConfig.from_dir(model)
    assert config.kv_groups == ((0, 2), (1,))
    assert [(config.kv_group(layer), config.kv_index(layer)) for layer in range(4)] == [(0, 0), (1, 0), (0, 1), (1, 0)]
    groups = CacheLayout.of(config, 8, 96, 16).groups
    assert [group.shape for group in groups] == [(2, 2, 8, 2, 112 * 16), (1, 2, 8, 1, 112 * 48)]


def test_gpus_compute_what_numpy_does(model: Path) -> None:
    logits = JaxGraphs(model, 64).logits(Chunk(0, PROMPT, 0, 0))
    np.testing.assert_allclose(logits, reference(model, PROMPT), atol=2e-4)


def test_cpus_compute_what_numpy_does(model: Path, runner: IreeRunner) -> None:
    tokens = generate(runner, 0, 12)
    expected = reference(model, (*PROMPT, *tokens))[len(PROMPT) - 1 : -1]
    assert tokens == expected.argmax(-1).tolist()


def test_rows_of_all_arrays_are_copied_and_moved(runner: IreeRunner) -> None:
    expected = generate(runner, 1, 8)
    assert runner.capabilities.row_bytes == kv_row_bytes(runner._plan.config, 4, "auto") == 4 * (2 * 2 * 32 + 80)
    runner.copy_prefix(1, 2, 32)
    assert generate(runner, 2, 8, 32) == expected
    rows = runner.read_rows(1, 0, 33)
    assert len(rows) == 33 * runner.capabilities.row_bytes
    runner.reset(3)
    runner.write_rows(3, 0, rows)
    assert generate(runner, 3, 8, 33) == expected
    assert [array.window[:, :, 1].any() for array in runner._buffers.kv if array.window is not None] == [True, True]
    runner.reset(1)
    assert not any(array.window[:, :, 1].any() for array in runner._buffers.kv if array.window is not None)
