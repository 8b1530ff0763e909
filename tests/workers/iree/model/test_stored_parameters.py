"""Storage of parameters: in the checkpoint's format, in the one asked for, or as they are."""

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.quantized import requantize
from tests.workers.iree.conftest import Load
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, open_weights
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized, quantize
from workers.host.memory import MemoryRefused
from workers.iree import runner as runner_module
from workers.iree.kernels.ir.arithmetic import Bf16Dot
from workers.iree.kernels.matmul.packing import Packing, made_format, restore, stored_format
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import Stored, pack_parameter, quantization_of, stored_parameters
from workers.iree.model.tiled_ops import TiledOps
from workers.precision import Quantize

OPS = TiledOps("bfloat16", Bf16Dot())


def stored(path: Path, kind: Quantize = "none", ops: TiledOps | PlainOps = OPS) -> dict[str, Stored]:
    return {each.name: each for each in stored_parameters(ModelConfig.from_dir(path), ops, open_weights(path), kind)}


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8), ("int4", 4)])
def test_matrices_are_quantized(tmp_path: Path, kind: Quantize, bits: int) -> None:
    made = stored(make_checkpoint(tmp_path), kind)
    packed = {name: each for name, each in made.items() if each.packing is not None}
    matrices = {f"{layer}.{part}" for layer in (0, 1) for part in ("qkv", "o", "gate_up", "down")}
    assert set(packed) == {"embedding"} | matrices
    assert "head" not in made  # it is tied
    assert {each.packing.format.bits for each in packed.values() if each.packing} == {bits}
    assert quantization_of(list(made.values())) == kind
    weights = open_weights(tmp_path)
    for each in made.values():
        assert pack_parameter(each, weights, OPS).nbytes == each.nbytes


@pytest.mark.parametrize(
    ("tied", "kind", "bits", "expected"),
    [
        (True, "int8", None, {"embedding": True}),
        (False, "int8", None, {"embedding": True, "head": True}),
        (True, "none", 4, {"embedding": True}),
        (False, "none", None, {"embedding": False, "head": False}),
        (True, "none", None, {"embedding": False, "head": False}),
    ],
)
def test_a_quantized_tied_head_is_stored_once(
    tmp_path: Path, tied: bool, kind: Quantize, bits: Literal[4] | None, expected: dict[str, bool]
) -> None:
    made = stored(make_checkpoint(tmp_path, tied=tied, quantized_bits=bits), kind)
    assert {name: made[name].packing is not None for name in ("embedding", "head") if name in made} == expected


@pytest.mark.parametrize("method", ["mlx", "gptq", "awq"])
def test_quantized_checkpoints_keep_their_levels(tmp_path: Path, method: Literal["mlx", "gptq", "awq"]) -> None:
    if method == "mlx":
        path = make_checkpoint(tmp_path, quantized_bits=4)
    else:
        path = requantize(make_checkpoint(tmp_path), method)
    weights, down = open_weights(path), stored(path)["0.down"]
    assert down.packing is not None
    matrix = weights.take_quantized("model.layers.0.mlp.down_proj.weight", (64, 128))
    np.testing.assert_array_equal(pack_parameter(down, weights, OPS), down.packing.pack(matrix))
    assert quantization_of(list(stored(path).values())) == "int4"
    assert quantization_of(list(stored(path, ops=PlainOps("bfloat16")).values())) == ""


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
@pytest.mark.parametrize("method", ["mlx", "gptq", "awq", "made"])
def test_experts_are_matrices_like_others(
    tmp_path: Path, family: str, method: Literal["mlx", "gptq", "awq", "made"]
) -> None:
    """The router is kept as it is, or widened. Their tiles lie one expert behind the other."""
    fields = {"moe_intermediate_size": 64} if family == "qwen3_moe" else {"intermediate_size": 64}
    path = make_checkpoint(tmp_path, family, tied=False, fields=fields, quantized_bits=4 if method == "mlx" else None)
    if method in ("gptq", "awq"):
        requantize(path, method)
    weights, config = open_weights(path), ModelConfig.from_dir(path)
    made = stored(path, "int4" if method == "made" else "none")
    assert made["1.router"].packing is None
    experts = config.experts
    assert experts is not None
    for name, rows in (("0.experts_gate_up", 2 * 64), ("1.experts_down", 64)):
        each = made[name]
        assert each.packing is not None
        assert each.packing.format.bits == 4
        whole = pack_parameter(each, weights, OPS)
        assert (whole.shape, whole.nbytes) == (each.shape, each.nbytes)
        assert each.nbytes == experts.count * rows * 64 * each.packing.format.bits_per_weight / 8
        if method != "made":
            source, shape = each.parameter.sources[-1]
            last = each.packing.pack(weights.take_quantized(source, shape))
            np.testing.assert_array_equal(whole[-len(last) :], last)


def test_parts_of_other_bits_are_stored_together(tmp_path: Path) -> None:
    """As in MLX's mixed recipes. No weight changes."""
    path, other = make_checkpoint(tmp_path / "4", quantized_bits=4), make_checkpoint(tmp_path / "8", quantized_bits=8)
    module = "model.layers.0.self_attn.v_proj"
    config = json.loads((path / "config.json").read_text())
    config["quantization"][module] = {"group_size": 32, "bits": 8}
    (path / "config.json").write_text(json.dumps(config))
    own = {name: value for name, value in load_file(other / "model.safetensors").items() if name.startswith(module)}
    write_safetensors(path / "model.safetensors", load_file(path / "model.safetensors") | own)
    made, weights = stored(path), open_weights(path)
    packings = [made[name].packing for name in ("0.qkv", "1.qkv")]
    assert [packing and packing.format.bits for packing in packings] == [8, 4]
    assert quantization_of(list(made.values())) == "int4+int8"
    whole, packing = pack_parameter(made["0.qkv"], weights, OPS), packings[0]
    assert packing is not None
    values = weights.take_quantized(f"{module}.weight", (32, 64))
    np.testing.assert_array_equal(whole[-2:], packing.pack(values))
    queries = weights.take_quantized("model.layers.0.self_attn.q_proj.weight", (64, 64))
    np.testing.assert_array_equal(whole[:4], packing.pack(restore(queries, packing.format)))


def test_parts_of_which_one_is_plain_are_widened(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, quantized_bits=4)
    name = "model.layers.0.self_attn.v_proj"
    plain = {f"{name}.weight": open_weights(path)[f"{name}.weight"]}
    tensors = load_file(path / "model.safetensors")
    kept = {each: value for each, value in tensors.items() if not each.startswith(name)}
    write_safetensors(path / "model.safetensors", kept | plain)
    made = stored(path)
    assert made["0.qkv"].packing is None
    assert made["1.qkv"].packing is not None


@pytest.mark.parametrize(
    ("formats", "inputs", "expected"),
    [
        ([(4, 64, "bias", "bfloat16")], 128, (4, 64, "bias", "bfloat16")),
        ([(6, 64, "bias", "float16")], 128, (8, 64, "bias", "float16")),
        ([(2, 32, "middle", "float16")], 128, (4, 32, "level", "float16")),
        ([(4, 4096, "middle", "float16")], 4096, (4, 128, "middle", "float16")),
        ([(4, 16, "bias", "float16")], 128, None),
        ([(4, 64, "bias", "float16"), (6, 32, "bias", "float16")], 128, (8, 32, "bias", "float16")),
        ([(4, 64, "middle", "float16"), (4, 64, "level", "float16")], 128, (4, 64, "level", "float16")),
        ([(4, 64, "middle", "float16"), (8, 64, "middle", "float16")], 128, (8, 64, "level", "float16")),
        ([(4, 64, "bias", "float16"), (4, 64, "middle", "float16")], 128, None),
        ([(4, 64, "bias", "float16"), (4, 64, "bias", "bfloat16")], 128, None),
    ],
)
def test_stored_formats(formats: list[Any], inputs: int, expected: Any) -> None:
    assert stored_format([GroupFormat(*each) for each in formats], inputs) == (expected and GroupFormat(*expected))


def test_a_stored_format_changes_no_weight() -> None:
    random = np.random.default_rng(0)
    format = GroupFormat(2, 256, "middle", "float16")
    levels, scales = random.integers(0, 4, (16, 512)).astype(np.uint8), random.random((16, 2)).astype(np.float16)
    matrix = Quantized(format, levels, scales, None)
    target = stored_format([format], 512)
    assert target is not None
    np.testing.assert_array_equal(restore(matrix, target).dequantize(), matrix.dequantize())


def test_a_matrix_that_no_group_divides_stays(tmp_path: Path) -> None:
    assert made_format("int4", 96) == GroupFormat(4, 32, "bias", "float16")
    assert made_format("int4", 48) is None
    assert made_format("none", 64) is None


def test_a_tile_ends_with_a_line() -> None:
    matrix = quantize(np.ones((3, 96), np.float32), GroupFormat(4, 32, "bias", "float16"))
    packing = Packing(matrix.format)
    assert packing.pack(matrix).shape == packing.stored_shape(3, 96) == (1, 96 * 8 + 2 * 3 * 32)
    assert packing.tile_bytes(32) == 32 * 8 + 64


def test_what_is_quantized_already_is_refused(tmp_path: Path) -> None:
    config = ModelConfig.from_dir(make_checkpoint(tmp_path, quantized_bits=4))
    assert config.choose_quantization("none") == "none"
    with pytest.raises(CheckpointError, match="quantization: the model is quantized to 4 bits already"):
        config.choose_quantization("int8")


def test_a_model_of_which_nothing_can_be_quantized_is_refused(load: Load, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, hidden=48, head_dim=16, heads=3, kv_heads=1, ffn=80)
    with pytest.raises(CheckpointError, match="hidden_size: no matrix has rows of whole groups of 32: none can be"):
        load(path, quantize="int8")


def test_what_does_not_fit_is_refused_before_anything_is_written(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "free_bytes", lambda: 100_000)
    path = make_checkpoint(tmp_path / "model")
    with pytest.raises(MemoryRefused, match=r"the model needs .* set --quantize int8 or int4"):
        load(path, cache_dir=tmp_path / "cache")
    with pytest.raises(MemoryRefused, match="kv_bytes: 9999 bytes hold 19 tokens, fewer than the context of 96"):
        load(path, cache_dir=tmp_path / "cache", kv_bytes=9999)
    assert not (tmp_path / "cache" / "weights").exists()
