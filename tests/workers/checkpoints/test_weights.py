"""Tensors are read as they were written, from every file layout; errors name what is damaged."""

import itertools
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from tests.checkpoints import make_checkpoint, stack_experts, write_safetensors
from tests.quantized import requantize
from tests.workers.checkpoints.low_bits.low_bit_files import to_stacked_mxfp4
from workers.checkpoints.checkpoint import CheckpointError, open_weights
from workers.checkpoints.expert_stacks import ExpertMatrix, is_stack, unstacked
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.json_files import read_json

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_types_are_kept(tmp_path: Path, dtype: Any) -> None:
    weights = open_weights(make_checkpoint(tmp_path / dtype, dtype=dtype))
    exact = open_weights(make_checkpoint(tmp_path / "exact"))
    assert list(weights) == list(exact)
    for name in exact:
        assert weights[name].dtype == DTYPES[dtype]
        np.testing.assert_array_equal(weights[name], exact[name].astype(DTYPES[dtype]))


def test_shards_are_one_mapping(tmp_path: Path) -> None:
    single = open_weights(make_checkpoint(tmp_path / "single", tied=False))
    sharded = open_weights(make_checkpoint(tmp_path / "sharded", tied=False, sharded=True))
    assert set(single) == set(sharded)
    assert len(single) == len(sharded)
    for name in single:
        np.testing.assert_array_equal(single[name], sharded[name])


@pytest.mark.parametrize(("bits", "tolerance"), [(2, 0.2), (3, 0.1), (4, 0.08), (5, 0.03), (6, 0.015), (8, 0.005)])
def test_quantized_tensors_come_back_under_their_own_names(tmp_path: Path, bits: int, tolerance: float) -> None:
    plain = open_weights(make_checkpoint(tmp_path / "plain"))
    quantized = open_weights(make_checkpoint(tmp_path / "quantized", quantized_bits=bits))
    assert set(quantized) == set(plain)
    for name in plain:
        extent = float(np.ptp(plain[name]))
        np.testing.assert_allclose(quantized[name], plain[name], atol=tolerance * extent, rtol=0)


def test_modules_may_differ_in_bits(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, quantized_bits=8)
    config = json.loads((path / "config.json").read_text())
    config["quantization"] = {
        "group_size": 32,
        "bits": 4,
        **{name.removesuffix(".weight"): {"group_size": 32, "bits": 8} for name in open_weights(path)},
    }
    (path / "config.json").write_text(json.dumps(config))
    assert open_weights(path).take("model.embed_tokens.weight", (512, 64)).dtype == np.float32


@pytest.mark.parametrize(("family", "bits"), [("qwen3_moe", None), ("qwen3_moe", 4), ("mixtral", 8)])
def test_stacked_experts_come_back_one_by_one(tmp_path: Path, family: Any, bits: Any) -> None:
    plain = open_weights(make_checkpoint(tmp_path / "plain", family, tied=False))
    path = make_checkpoint(tmp_path / "stacked", family, tied=False, quantized_bits=bits)
    if bits is None:
        write_safetensors(path / "model.safetensors", stack_experts(dict(plain)))
    stacked = open_weights(path)
    assert set(stacked) == set(plain)
    assert len(stacked) == len(plain)
    for name in plain:
        extent = float(np.ptp(plain[name]))
        np.testing.assert_allclose(stacked[name], plain[name], atol=0.08 * extent if bits else 0, rtol=0)


def test_a_stack_that_is_damaged_is_named(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "mixtral", tied=False, quantized_bits=8)
    stem = "model.layers.0.block_sparse_moe.switch_mlp.up_proj"
    with safe_open(str(path / "model.safetensors"), framework="numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    tensors[f"{stem}.scales"] = tensors[f"{stem}.scales"][:3]
    write_safetensors(path / "model.safetensors", tensors)
    name = "model.layers.0.block_sparse_moe.experts.3.w3.weight"
    with pytest.raises(CheckpointError, match=r"up_proj\.scales"):
        open_weights(path)[name]
    tensors[f"{stem}.weight"] = np.zeros((4097, 0, 0), np.uint32)
    write_safetensors(path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"up_proj.weight: stacks 4097 experts, more than 4096"):
        open_weights(path)


def test_experts_in_stacks_whose_gates_and_ups_alternate(tmp_path: Path) -> None:
    """gpt-oss, as transformers saves it, and in MXFP4."""
    path = make_checkpoint(tmp_path / "model", "gpt_oss", layers=1, tied=False)
    with safe_open(path / "model.safetensors", "np") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    block = "model.layers.0.mlp.experts."
    weights = open_weights(path)
    assert f"{block}gate_up_proj" not in weights
    for expert, (half, name) in itertools.product(range(6), enumerate(("gate_proj", "up_proj"))):
        matrix = stored[f"{block}gate_up_proj"][expert][:, half::2].T
        assert weights.shape(f"{block}{expert}.{name}.weight") == matrix.shape == (128, 64)
        np.testing.assert_array_equal(weights[f"{block}{expert}.{name}.weight"], matrix)
        bias = stored[f"{block}gate_up_proj_bias"][expert, half::2]
        np.testing.assert_array_equal(weights.take(f"{block}{expert}.{name}.bias", (128,)), bias)
    np.testing.assert_array_equal(weights[f"{block}5.down_proj.weight"], stored[f"{block}down_proj"][5].T)
    packed, meant = map(open_weights, to_stacked_mxfp4(path))
    assert set(packed) == set(meant) == set(weights)
    packed.check_types()
    for name, matrix in meant.items():
        np.testing.assert_array_equal(packed[name], matrix)
        if packed.format(name) is not None:
            np.testing.assert_array_equal(packed.take_quantized(name, matrix.shape).dequantize(), matrix)


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("_scales", lambda scales: scales[:, :7], r"scales has the shape \(.*\), not \(128, 2\)"),
        ("_blocks", lambda blocks: blocks[..., :8], r"has the shape \(128, 2, 8\) of an expert, not"),
        ("_scales", None, "gate_up_proj_scales: the tensor is missing"),
        ("_blocks", lambda blocks: np.zeros((4097, 1, 1, 16), np.uint8), "stacks 4097 experts, more than 4096"),
        ("_blocks", lambda blocks: blocks[:, 0, 0, 0], r"_blocks: has the shape \(6,\), not that of 6 experts"),
        ("_scales", lambda scales: scales[:5], r"_scales: has the shape \(5, .*\), not that of 6 experts"),
        ("_scales", lambda scales: scales[:, 0, 0], r"_scales: has the shape \(6,\), not that of 6 experts"),
    ],
    ids=["scales", "blocks", "missing", "many", "flat", "few", "flat-scales"],
)
def test_damaged_stacks_of_mxfp4(tmp_path: Path, part: str, change: Any, words: str) -> None:
    path, _ = to_stacked_mxfp4(make_checkpoint(tmp_path / "model", "gpt_oss", layers=1, tied=False))
    with safe_open(path / "model.safetensors", "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    name = f"model.layers.0.mlp.experts.gate_up_proj{part}"
    changed = tensors.pop(name)
    if change is not None:
        tensors[name] = np.ascontiguousarray(change(changed))
    write_safetensors(path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=words):
        open_weights(path)["model.layers.0.mlp.experts.5.gate_proj.weight"]


def test_what_is_no_stack_keeps_its_name() -> None:
    names = [name for name, _ in unstacked("model.layers.1.mlp.switch_mlp.down_proj.weight", 2)]
    assert names == [f"model.layers.1.mlp.experts.{expert}.down_proj.weight" for expert in range(2)]
    ((name, place),) = unstacked("a.block_sparse_moe.switch_mlp.gate_proj.weight", 1)
    assert (name, place) == ("a.block_sparse_moe.experts.0.w1.weight", ExpertMatrix(0))
    for name in ("a.mlp.down_proj", "a.switch_mlp.fc1", "switch_mlp.up_proj", "a.switch_mlp.up_proj", "a.experts.x"):
        assert not is_stack(name)


@pytest.mark.parametrize("family", ["qwen3_moe", "granitemoeshared"])
def test_stacks_of_gates_and_up_matrices(tmp_path: Path, family: str) -> None:
    """Those of transformers 5 and of Granite: the gates of an expert come before its up matrix."""
    path = make_checkpoint(tmp_path, family, layers=1)
    if family == "granitemoeshared":
        stacks = load_file(path / "model.safetensors")
        both, downs = (stacks[f"model.layers.0.block_sparse_moe.{way}_linear.weight"] for way in ("input", "output"))
        block, parts = "model.layers.0.block_sparse_moe", ("w1", "w3", "w2")
    else:
        tensors = stack_experts(dict(open_weights(path)))
        block, parts = "model.layers.0.mlp", ("gate_proj", "up_proj", "down_proj")
        gates, ups, downs = (tensors.pop(f"{block}.switch_mlp.{part}.weight") for part in parts)
        both = np.concatenate([gates, ups], axis=1)
        stored = tensors | {f"{block}.experts.gate_up_proj": both, f"{block}.experts.down_proj": downs}
        write_safetensors(path / "model.safetensors", stored)
    weights = open_weights(path)
    weights.check_types()
    ffn = both.shape[1] // 2
    for expert in (0, 5):
        for part, expected in zip(parts, (both[:, :ffn], both[:, ffn:], downs), strict=True):
            name = f"{block}.experts.{expert}.{part}.weight"
            np.testing.assert_array_equal(weights.take(name, weights.shape(name)), expected[expert])
    assert not any(("_linear" in name and "shared" not in name) or "experts.down_proj" in name for name in weights)


def test_scales_without_a_plan_are_refused(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, quantized_bits=4)
    config = json.loads((path / "config.json").read_text())
    del config["quantization"], config["quantization_config"]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="quantization: is missing"):
        open_weights(path)


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    weights = open_weights(make_checkpoint(tmp_path))
    with pytest.raises(CheckpointError, match=r"lm_head.weight: the tensor is missing"):
        weights.take("lm_head.weight", (512, 64))
    with pytest.raises(CheckpointError, match=r"model.norm.weight: has the shape \(64,\), config.json says \(65,\)"):
        weights.take("model.norm.weight", (65,))
    with pytest.raises(KeyError):
        weights["no.such.tensor"]


def test_unsupported_tensor_type_is_named(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    header = json.dumps({"t": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match="t: type I64 is not supported"):
        open_weights(path)["t"]


def test_no_weights(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors: there is no such file$"):
        open_weights(path)
    (path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"no such file, and pytorch_model.bin is in a format .* not read"):
        open_weights(path)


def test_cut_file(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    data = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r"is not a safetensors file: .*; download it again$"):
        open_weights(path)


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 988097824\n"
    for name in ("model.safetensors", "tokenizer.json", "model.gguf"):
        (path / name).write_text(pointer)
    problem = r"is a pointer of Git LFS .*`git lfs pull` fetches it$"
    with pytest.raises(CheckpointError, match=rf"safetensors: {problem}"):
        open_weights(path)
    with pytest.raises(CheckpointError, match=rf"tokenizer\.json: {problem}"):
        read_json(path / "tokenizer.json")
    with pytest.raises(CheckpointError, match=rf"model\.gguf: {problem}"):
        GgufFile.open(path / "model.gguf")


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", 3, ""])
def test_index_leads_nowhere_else(tmp_path: Path, shard: Any) -> None:
    path = make_checkpoint(tmp_path, sharded=True)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(CheckpointError, match=r"weight_map.a: .*is not a file name"):
        open_weights(path)


def test_index_names_a_tensor_that_its_shard_lacks(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "one.safetensors", {"b": np.zeros(1, np.float32)})
    (tmp_path / "config.json").write_text("{}")
    index = {"weight_map": dict.fromkeys("ab", "one.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"one.safetensors: a: "):
        open_weights(tmp_path)["a"]


def test_a_shards_tensor_that_the_index_leaves_out_is_refused(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, sharded=True)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    del index["weight_map"]["model.norm.weight"]
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model.norm.weight: the tensor is not in the weight_map"):
        open_weights(path)


def test_one_file_goes_before_an_index(tmp_path: Path) -> None:
    """As in transformers: mlx-lm writes an index beside a single file, and others leave one behind."""
    path = make_checkpoint(tmp_path)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    assert "model.norm.weight" in open_weights(path)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    write_safetensors(path / "model.safetensors", {"t": np.ones((2, 2), np.uint32)})
    with pytest.raises(CheckpointError, match="t: type U32 is not supported"):
        open_weights(path).take("t", (2, 2))


@pytest.mark.parametrize(
    ("method", "part", "dtype"),
    [
        ("gptq", "qweight", np.float32),
        ("gptq", "qzeros", np.float32),
        ("gptq", "g_idx", np.float32),
        ("awq", "qweight", np.float32),
        ("mlx", "weight", np.float32),
        ("mlx", "biases", np.uint32),
    ],
)
def test_packed_integers_are_integers_and_scales_are_not(tmp_path: Path, method: Any, part: str, dtype: Any) -> None:
    """Integers of the same size would be read as floats, and be another model."""
    path = make_checkpoint(tmp_path, quantized_bits=4 if method == "mlx" else None)
    if method != "mlx":
        requantize(path, method)
    tensors = load_file(path / "model.safetensors")
    name = f"model.layers.0.self_attn.q_proj.{part}"
    tensors[name] = np.zeros(tensors[name].shape, dtype)
    write_safetensors(path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=rf"q_proj\.{part}: type [FU]32 is not supported"):
        open_weights(path)["model.layers.0.self_attn.q_proj.weight"]
