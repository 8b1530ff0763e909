"""mlx-lm's models with our replacements; mlx-lm itself stays unchanged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models.gemma
import mlx_lm.models.gemma2
import mlx_lm.models.llama
import mlx_lm.models.qwen3
import numpy as np
import pytest
from mlx_lm.utils import load_model
from safetensors.numpy import load_file

from tests.checkpoints import LLAMA3_SCALING, make_checkpoint, stack_experts, write_safetensors
from tests.reference.routing import ROUTERS, bias_of, experts_of, logits_for, logits_that_are_not_finite, routed
from tests.workers.mlx.conftest import Load
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.engine.runner import Chunk
from workers.errors import LoadRefused
from workers.mlx.architecture import Adapter, bind_module
from workers.mlx.loading import adapter_choice
from workers.mlx.loading.adapters import LLAMA
from workers.mlx.loading.model import load_architecture
from workers.mlx.modules.parts import Multiplied, ragged_attention
from workers.mlx.modules.routed_experts import route

TOKENS = tuple(range(3, 90))


def edit_config(path: Path, **changes: Any) -> None:
    """Change fields of config.json; None takes a field out."""
    file = path / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def plain_logits(path: Path) -> np.ndarray[Any, Any]:
    """The logits of mlx-lm's own forward, without our replacements."""
    model, _ = load_model(path)
    return np.array(model(mx.array(TOKENS)[None])[0].astype(mx.float32))


AS_IN_MLX_LM = (
    *("llama", "mistral", "qwen2", "mimo", "qwen3", "smollm3", "olmo2", "olmo3", "seed_oss", "phi3", "gemma", "gemma2"),
    *("gemma3_text", "granite", "qwen3_moe", "mixtral", "stablelm", "phi", "glm4", "nemotron", "ernie4_5"),
    *("olmoe", "granitemoe"),
)
"""Families whose checkpoints mlx-lm reads and computes as transformers does."""


@pytest.mark.parametrize("family", AS_IN_MLX_LM)
def test_the_same_logits_as_the_plain_forward(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr(mlx_lm.models.gemma, "MLP", mlx_lm.models.gemma2.MLP)  # whose GELU is the one of Gemma 1
    fields = {"sliding_window": 512} if family == "gemma2" else {}  # which mlx-lm knows nothing of
    path = make_checkpoint(tmp_path, family, tied=family.startswith("gemma"), fields=fields)
    np.testing.assert_allclose(load(path).logits(Chunk(0, TOKENS, 0, 0)), plain_logits(path), atol=1e-4)


@pytest.mark.parametrize("family", ["phi", "stablelm"])
def test_scores_beyond_float16_are_finite(tmp_path: Path, load: Load, family: str) -> None:
    path = make_checkpoint(tmp_path, family, tied=False, dtype="float16", layers=1, fields={"qk_layernorm": False})
    tensors = load_file(path / "model.safetensors")
    large = {name: 150 * value for name, value in tensors.items() if "q_proj" in name or "k_proj" in name}
    write_safetensors(path / "model.safetensors", tensors | large)
    runner = load(path)
    first = runner.logits(Chunk(0, TOKENS, 0, 0))
    assert np.isfinite(first).all()
    assert runner.logits(Chunk(1, TOKENS[:20], 0, 0)).tolist() == first[:20].tolist()


def test_binding_leaves_the_imported_module_alone(tmp_path: Path, load: Load) -> None:
    before = dict(vars(mlx_lm.models.llama))
    path = make_checkpoint(tmp_path)
    expected = plain_logits(path)
    load(path)
    assert vars(mlx_lm.models.llama) == before
    np.testing.assert_array_equal(plain_logits(path), expected)


def test_two_bound_modules_are_two() -> None:
    one, two = (bind_module(LLAMA, compiled=False) for _ in range(2))
    assert one is not two
    assert one.scaled_dot_product_attention is ragged_attention
    assert one.Model is not two.Model


@pytest.mark.parametrize("family", ["llama", "gemma", "gemma2", "gemma3_text", "qwen2_moe", "qwen3_moe", "mixtral"])
def test_nothing_is_compiled_on_a_cpu(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch, family: Any) -> None:
    """`mx.compile` writes a library to a folder that other users share: no function made by it may run."""

    def refuse(*_: Any) -> None:
        raise AssertionError("compiled")

    path = make_checkpoint(tmp_path, family, tied="gemma" in family)
    for name in ("silu", "gelu", "gelu_approx", "relu"):
        monkeypatch.setattr(f"mlx.nn.{name}", refuse)
    for module in ("activations", "switch_layers"):
        monkeypatch.setattr(f"mlx_lm.models.{module}.swiglu", refuse)
    load(path).logits(Chunk(0, TOKENS, 0, 0))


def test_a_module_without_the_name_is_refused() -> None:
    with pytest.raises(LoadRefused, match=r"mlx_lm\.models\.base has no swiglu: this version of mlx-lm is not"):
        bind_module(Adapter("base"), compiled=False)
    with pytest.raises(LoadRefused, match=r"no module mlx_lm\.models\.none_such: .*pip install"):
        bind_module(Adapter("none_such"), compiled=False)


def test_an_architecture_is_refused_by_name(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_checkpoint(tmp_path)
    edit_config(path, architectures=["MambaForCausalLM"], model_type="mamba")
    with pytest.raises(CheckpointError, match="MambaForCausalLM"):
        load(path)
    edit_config(path, architectures=["LlamaForCausalLM"], model_type="llama")
    monkeypatch.setattr(adapter_choice, "ADAPTERS", {"qwen3": Adapter("qwen3")})
    with pytest.raises(CheckpointError, match="'llama' is not supported by the MLX backend, only qwen3"):
        load(path)


def test_what_mlx_lm_would_compute_differently_is_refused(tmp_path: Path) -> None:
    wide = make_checkpoint(tmp_path / "wide", "qwen2", head_dim=32)
    with pytest.raises(CheckpointError, match="head_dim"):
        load_architecture(wide, ModelConfig.from_dir(wide), 128, compiled=False)
    biased = make_checkpoint(tmp_path / "biased", "qwen3")
    config = replace(ModelConfig.from_dir(biased), qkv_bias=True, o_bias=True)
    with pytest.raises(CheckpointError, match="attention_bias"):
        load_architecture(biased, config, 128, compiled=False)


def test_a_window_hides_what_is_before_it(tmp_path: Path, load: Load) -> None:
    """The last rows do not depend on what is before their window, and rows do not depend on the chunk."""
    path = make_checkpoint(tmp_path, "mistral", layers=1)
    edit_config(path, sliding_window=24)
    runner = load(path, context=128)
    whole = runner.logits(Chunk(0, TOKENS, 0, 0))
    other = runner.logits(Chunk(1, (*reversed(TOKENS[:-24]), *TOKENS[-24:]), 0, 0))
    np.testing.assert_array_equal(other[-1], whole[-1])
    assert np.abs(other[-2] - whole[-2]).max() > 1e-3
    single = [runner.logits(Chunk(2, (token,), index, index)) for index, token in enumerate(TOKENS)]
    np.testing.assert_array_equal(np.concatenate(single), whole)


def test_rope_of_transformers_5_is_read(tmp_path: Path, load: Load) -> None:
    """`rope_parameters` in place of `rope_theta` and `rope_scaling`, which mlx-lm's llama would leave out."""
    path = make_checkpoint(tmp_path, rope_scaling=LLAMA3_SCALING)
    expected = load(path).logits(Chunk(0, TOKENS, 0, 0))
    edit_config(path, rope_parameters={"rope_theta": 10000.0, **LLAMA3_SCALING}, rope_theta=None, rope_scaling=None)
    np.testing.assert_array_equal(load(path).logits(Chunk(0, TOKENS, 0, 0)), expected)
    edit_config(path, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})
    assert np.abs(load(path).logits(Chunk(0, TOKENS, 0, 0)) - expected).max() > 1e-2


def test_weights_that_do_not_fit_are_refused(tmp_path: Path, load: Load) -> None:
    path = make_checkpoint(tmp_path / "untied", tied=False)
    edit_config(path, num_hidden_layers=3)
    with pytest.raises(CheckpointError, match="cannot be loaded by mlx-lm"):
        load(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors: there is no such file"):
        load(path)


def test_a_multiplier_is_not_rounded_to_the_type_of_the_weights() -> None:
    weights = mx.array(np.random.default_rng(2).standard_normal(400), mx.bfloat16)
    product = Multiplied(lambda x: x, 0.22)(weights)
    exact = np.array(weights.astype(mx.float32)) * np.float32(0.22)
    np.testing.assert_array_equal(product.astype(mx.float32), mx.array(exact).astype(mx.bfloat16).astype(mx.float32))
    assert not mx.array_equal(product, weights * 0.22), "mlx rounds the multiplier first"


def test_layers_without_experts_are_refused_where_mlx_lm_has_none(tmp_path: Path, load: Load) -> None:
    path = make_checkpoint(tmp_path, "qwen2_moe", fields={"decoder_sparse_step": 2})
    with pytest.raises(CheckpointError, match="decoder_sparse_step: an MLP in place of experts is not supported by"):
        load(path)


def test_stacks_of_transformers_are_read(tmp_path: Path, load: Load) -> None:
    """Gates and up matrices in one tensor, as in published Qwen3.5-MoE, and experts one by one."""
    single, stacked = (make_checkpoint(tmp_path / name, "qwen3_5_moe_text") for name in ("single", "stacked"))
    tensors = stack_experts(dict(open_weights(single)))
    for name in [name for name in tensors if name.endswith("switch_mlp.down_proj.weight")]:
        block = name.removesuffix("switch_mlp.down_proj.weight")
        gate, up = (tensors.pop(f"{block}switch_mlp.{part}_proj.weight") for part in ("gate", "up"))
        tensors[f"{block}experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        tensors[f"{block}experts.down_proj"] = tensors.pop(name)
    write_safetensors(stacked / "model.safetensors", tensors)
    chunk = Chunk(0, (5, 6, 7, 8), 0, 0)
    expected, actual = (load(path).logits(chunk) for path in (single, stacked))
    assert np.ptp(expected) > 0
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ROUTERS)
def test_routers(name: str) -> None:
    """Against numpy; of equal experts the first is chosen, and logits that are not finite make all weights NaN."""
    router = ROUTERS[name]
    experts, bias, logits = experts_of(router), bias_of(router), logits_for(router)
    given = None if bias is None else mx.array(bias)
    expected = routed(np, logits, experts, bias)
    chosen, weights = (np.array(each) for each in route(mx.array(logits), experts, given))
    np.testing.assert_array_equal(chosen, expected[0])
    np.testing.assert_allclose(weights, expected[1], rtol=2e-6)
    _, weights = (np.array(each) for each in route(mx.array(logits_that_are_not_finite()), experts, given))
    np.testing.assert_array_equal(np.isnan(weights).all(-1), [False, True, True, True, True, False])
    assert np.isfinite(weights[[0, 5]]).all()
