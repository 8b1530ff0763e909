"""Files of LoRA adapters: what is read, and what is refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from tests.checkpoints import make_checkpoint
from tests.workers.checkpoints.lora.lora_files import ATTENTION, make_lora
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig
from workers.checkpoints.lora.adapted_matrices import adapter_stacks, read_adapters
from workers.checkpoints.lora.adapter_weights import AdapterWeights
from workers.checkpoints.lora.adapters_digest import adapters_digest

Q = "model.layers.0.self_attn.q_proj"
TENSOR = f"base_model.model.{Q}.lora_A.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("lora") / "model", "llama", layers=2)


def read(adapter: Path, model: Path, max_rank: int = 64) -> list[Any]:
    adapters = read_adapters([("one", adapter)], max_rank)
    stacks = adapter_stacks(ModelConfig.from_dir(model), adapters)
    return [stack.matrices(adapters) for stack in stacks]


def change(adapter: Path, **tensors: NDArray[Any] | None) -> None:
    """Replace tensors of an adapter, or remove them."""
    file = adapter / "adapter_model.safetensors"
    kept = {name: value for name, value in (load_file(file) | tensors).items() if value is not None}
    save_file(kept, file)


def test_the_scale_and_the_ranks_of_patterns_are_those_of_peft(tmp_path: Path, model: Path) -> None:
    patterns: dict[str, Any] = {
        "rank_pattern": {"q_proj": 4},
        "alpha_pattern": {r".*\.(1|7)\.self_[a-z]+.q_proj": 3, "v_proj" + "()" * 125: 24},
    }
    adapter = make_lora(tmp_path / "a", model, targets=["q_proj"], r=8, lora_alpha=16, **patterns)
    config = AdapterWeights("one", adapter, 64).config
    names = [Q, Q.replace("0", "1"), "model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.o_proj"]
    assert [config.rank_of(name) for name in names] == [4, 4, 8, 8]
    assert [config.scale_of(name) for name in names] == [16 / 4, 3 / 4, 24 / 8, 16 / 8]
    adapter = make_lora(tmp_path / "b", model, targets=["q_proj"], rank=4, use_rslora=True)
    assert AdapterWeights("one", adapter, 64).config.scale_of(Q) == 8 / math.sqrt(4)


def test_both_layouts_give_the_same_matrices(tmp_path: Path, model: Path) -> None:
    adapter = make_lora(tmp_path / "peft", model, targets=ATTENTION)
    other = tmp_path / "mlx"
    other.mkdir()
    (other / "adapter_config.json").write_text(json.dumps({"lora_parameters": {"rank": 4, "scale": 2.0}}))
    tensors = {
        name.removeprefix("base_model.model.")
        .removesuffix(".weight")
        .replace("lora_A", "lora_a")
        .replace("_B", "_b"): np.ascontiguousarray(value.T)
        for name, value in load_file(adapter / "adapter_model.safetensors").items()
    }
    save_file(tensors, other / "adapters.safetensors")
    for mine, theirs in zip(read(adapter, model), read(other, model), strict=True):
        assert all((a == b).all() for a, b in zip(mine, theirs, strict=True))
    assert adapters_digest([("a", adapter)]) != adapters_digest([("a", other)]) != adapters_digest([("b", other)])
    assert adapters_digest([]) == ""


def test_modules_of_a_multimodal_model_are_those_of_its_language_model(tmp_path: Path, model: Path) -> None:
    adapter = make_lora(tmp_path / "a", model, targets=["q_proj"])
    tensors = load_file(adapter / "adapter_model.safetensors")
    moved = {name.replace("model.layers", "model.language_model.layers"): value for name, value in tensors.items()}
    plain = read(adapter, model)
    save_file(moved, adapter / "adapter_model.safetensors")
    for mine, theirs in zip(read(adapter, model), plain, strict=True):
        assert (mine[1] == theirs[1]).all()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"peft_type": "IA3"}, "peft_type: 'IA3' is not supported, only LORA"),
        ({"use_dora": True}, "use_dora: true is not supported: merge the adapter"),
        ({"lora_bias": True}, "lora_bias: true is not supported"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out: true is not supported"),
        ({"bias": "all"}, "bias: 'all' is not supported, only none"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: is not supported"),
        ({"target_parameters": ["mlp.experts"]}, "target_parameters: is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: 'pissa' changes the model itself"),
        ({"r": 0}, "r: 0 is not an integer from 1 to 4096"),
        ({"r": 65}, "r: 65 is more than max_lora_rank, 64: set --max-lora-rank 65"),
        ({"rank_pattern": {"q_proj": 65}}, "rank_pattern.q_proj: 65 is more than max_lora_rank"),
        ({"rank_pattern": {"(": 4}}, r"rank_pattern.\(: is no regular expression"),
        ({"rank_pattern": {"([a-z_.0-9]+)+!": 4}}, "has a repeated group, flags, or over 256 characters or 3 repet"),
        ({"rank_pattern": {"((.)|(.))" * 30: 4}}, "has a repeated group, flags, or"),
        ({"alpha_pattern": {"(?x)(a+) *": 4}}, "has a repeated group, flags, or"),
        ({"alpha_pattern": {"a?" * 4: 4}}, "has a repeated group, flags, or"),
        ({"alpha_pattern": {"a" * 257: 4}}, "has a repeated group, flags, or"),
        ({"lora_alpha": "much"}, "lora_alpha: 'much' is not a number"),
        ({"r": 8}, f"{TENSOR}: has the rank 4, adapter_config.json says 8"),
    ],
    ids=str,
)
def test_a_config_that_is_no_plain_lora_is_refused(
    tmp_path: Path, model: Path, fields: dict[str, Any], problem: str
) -> None:
    adapter = make_lora(tmp_path / "a", model, targets=["q_proj"], **fields)
    with pytest.raises(CheckpointError, match=problem):
        read(adapter, model)


def test_ranks_up_to_the_bound_are_read(tmp_path: Path, model: Path) -> None:
    adapter = make_lora(tmp_path / "a", model, targets=["q_proj"], rank=8)
    assert read(adapter, model, 8)[0][0].shape[0] == 32  # whole vectors
    with pytest.raises(CheckpointError, match="r: 8 is more than max_lora_rank, 7"):
        read(adapter, model, 7)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({TENSOR: np.zeros((4, 3), np.float32)}, "has 3 inputs, model.layers.0.self_attn.q_proj has"),
        ({TENSOR: np.zeros((4, 64), np.int32)}, "type I32 is not supported"),
        ({TENSOR: np.zeros(4, np.float32)}, r"has the shape \(4,\), not that of a matrix"),
        ({TENSOR: np.full((4, 64), np.nan, np.float32)}, "has values that are not finite"),
        ({TENSOR: None}, "has no counterpart: the other matrix of the module is missing"),
        ({"base_model.model.lm_head.lora_A.weight": np.zeros((4, 3), np.float32)}, "has no counterpart"),
        ({f"base_model.model.{Q}.lora_magnitude_vector": np.zeros(3, np.float32)}, "is neither of the matrices"),
        (
            {f"base_model.model.lm_head.lora_{part}.weight": np.zeros((4, 4), np.float32) for part in "AB"},
            "adapters of llama may change down_proj, gate_proj, k_proj, .* of its layers, not lm_head",
        ),
    ],
    ids=[str(number) for number in range(8)],
)
def test_tensors_that_do_not_fit_are_refused(
    tmp_path: Path, model: Path, tensors: dict[str, NDArray[Any] | None], problem: str
) -> None:
    adapter = make_lora(tmp_path / "a", model, targets=["q_proj"])
    change(adapter, **tensors)
    with pytest.raises(CheckpointError, match=problem):
        read(adapter, model)


@pytest.mark.parametrize(("largest", "fits"), [(6.0, True), (5.999, False)])
def test_values_have_to_fit_the_type_of_the_model_with_their_scale(
    tmp_path: Path, model: Path, largest: float, fits: bool
) -> None:
    adapter = make_lora(tmp_path / "a", model, targets=["q_proj"])  # of scale 2
    tensor = TENSOR.replace("lora_A", "lora_B")
    shape = load_file(adapter / "adapter_model.safetensors")[tensor].shape
    change(adapter, **{tensor: np.full(shape, -3, np.float32)})
    weights = AdapterWeights("one", adapter, 4, largest)
    if fits:
        assert weights.pair(Q).b.min() == -6
    else:
        with pytest.raises(CheckpointError, match=r"lora_B.weight: has values, times the scale 2, above 5\.999, the l"):
            weights.pair(Q)


def test_a_scale_that_makes_values_infinite_is_refused(tmp_path: Path, model: Path) -> None:
    adapter = make_lora(tmp_path / "a", model, targets=["q_proj"], lora_alpha=1e15)
    tensor = TENSOR.replace("lora_A", "lora_B")
    shape = load_file(adapter / "adapter_model.safetensors")[tensor].shape
    change(adapter, **{tensor: np.full(shape, 1e30, np.float32)})
    with pytest.raises(CheckpointError, match=r"above 3\.40282e\+38, the largest of the model's type"):
        AdapterWeights("one", adapter, 4).pair(Q)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 7, b"\xff" * 64, (1 << 40).to_bytes(8, "little"), b"\x02" + bytes(7) + b"{}"]
)
def test_files_of_weights_that_are_none_are_refused(tmp_path: Path, model: Path, content: bytes) -> None:
    adapter = make_lora(tmp_path / "a", model, targets=["q_proj"])
    (adapter / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"adapter_model\.safetensors: (is not a safetensors file|has no tensors)"
    ):
        read(adapter, model)


def test_experts_are_refused_by_name(tmp_path: Path, model: Path) -> None:
    adapter = make_lora(tmp_path / "a", model, targets=["gate_proj"])
    mixture = make_checkpoint(tmp_path / "mixture", "qwen3_moe", layers=2)
    with pytest.raises(CheckpointError, match="adapters of qwen3_moe may change k_proj, o_proj, q_proj, v_proj of its"):
        read(adapter, mixture)


def test_files_that_are_missing_are_named(tmp_path: Path, model: Path) -> None:
    adapter = make_lora(tmp_path / "a", model, targets=["q_proj"])
    change(adapter, **dict.fromkeys(load_file(adapter / "adapter_model.safetensors")))
    with pytest.raises(CheckpointError, match="has no tensors"):
        read(adapter, model)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"there is no adapter_model\.safetensors beside it"):
        read(adapter, model)
