"""Checkpoints in FP8, FP4, NF4 and compressed-tensors: their weights, the served ones, and damaged tensors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.families import Tensors
from tests.workers.checkpoints.low_bits.low_bit_files import FORMATS, to_low_bits
from workers.checkpoints.architectures.tensors import check_tensors
from workers.checkpoints.checkpoint import CheckpointError, ModelConfig, Weights, open_weights
from workers.checkpoints.low_bits.codes import E2M1, from_e4m3, from_e8m0
from workers.checkpoints.low_bits.low_bit_weights import LowBitWeights
from workers.checkpoints.memory_estimate import estimate_weights

MATRIX = "model.layers.0.mlp.up_proj.weight"
SHAPE = (128, 64)
ADDED = {"fp8": 0.3, "nf4": 0.1}
"""Error that int8 adds at most, as a part of the error of the layout."""
EXACT = ("int", "mxfp4", "nvfp4")
"""Formats that are served with the weights that they have."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain checkpoint, which others are made from."""
    return make_checkpoint(tmp_path_factory.mktemp("plain"), layers=1)


@pytest.fixture
def copy(plain: Path, tmp_path: Path) -> Path:
    """A copy of the plain checkpoint, to be changed."""
    shutil.copytree(plain, tmp_path / "copy")
    return tmp_path / "copy"


def opened(path: Path) -> LowBitWeights:
    weights = open_weights(path)
    assert isinstance(weights, LowBitWeights)
    return weights


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_weights_are_those_of_the_format(plain: Path, copy: Path, name: str) -> None:
    before = open_weights(plain)
    path, meant = to_low_bits(copy, name)
    weights, config = opened(path), ModelConfig.from_dir(path)
    assert set(weights) == set(before)
    check_tensors(weights, config, path)
    weights.check_types()
    for matrix, expected in meant.items():
        assert weights.shape(matrix) == expected.shape
        np.testing.assert_allclose(weights[matrix], expected, rtol=2e-6, atol=0)
        served = weights.take_quantized(matrix, expected.shape)
        assert served.format == weights.format(matrix)
        found = served.dequantize()
        if name.startswith(EXACT):
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=0)
        else:
            own, added = (np.square(error).mean() for error in (expected - before[matrix], found - expected))
            assert 0 < added**0.5 < ADDED[weights.kinds()[0]] * own**0.5
    assert weights.inexact() == ([] if name.startswith(EXACT) else weights.kinds())


@pytest.mark.parametrize("name", ["fp8-blocks", "int4-group", "mxfp4", "nvfp4"])
def test_memory_is_near_that_of_the_file(copy: Path, name: str) -> None:
    """A weight takes one byte, or half of one for int4, and its part of a group's scale and zero in float32."""
    path = to_low_bits(copy, name)[0]
    weights = opened(path)
    sizes = {each: int(np.prod(weights.shape(each))) for each in weights}
    count = sum(size for each, size in sizes.items() if weights.format(each) is not None)
    # A tied embedding is stored twice.
    others = sum(sizes.values()) - count + sizes["model.embed_tokens.weight"]
    estimated = estimate_weights(path, dtype="bfloat16", quantize="none")
    each = {"int4-group": 0.5 + 8 / 32, "mxfp4": 0.5 + 2 / 32, "nvfp4": 0.5 + 4 / 16}.get(name, 1 + 8 / 64)
    found = (estimated - 2 * others) / count
    assert each <= found < 1.15 * each
    if name != "mxfp4":  # whose scales are smaller
        assert estimate_weights(path, dtype="bfloat16", quantize="int4") < estimated


def test_every_code_has_its_value() -> None:
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes[(codes & 0x7F) != 0x7F]
    np.testing.assert_array_equal(from_e4m3(numbers), numbers.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    exponents = codes[:255].view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    np.testing.assert_array_equal(from_e8m0(codes[:255]), exponents)
    np.testing.assert_array_equal(E2M1, codes[:16].view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    for convert in (from_e4m3, from_e8m0):
        with pytest.raises(ValueError, match="NaN"):
            convert(codes)


@pytest.mark.reference
def test_fp8_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    expected = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(from_e4m3(codes), expected)


def test_routers_and_matrices_that_are_quantized_anew_are_plain(copy: Path) -> None:
    path = to_low_bits(copy, "fp8-channel")[0]
    assert open_weights(path, "int4").format(MATRIX) is None
    assert opened(path).widths() == "int8"


def without(part: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[MATRIX.removesuffix("weight") + part]

    return change


def shortened(part: str) -> Callable[[Tensors], None]:
    """Leave out the last row or number of a part."""

    def change(tensors: Tensors) -> None:
        name = MATRIX.removesuffix("weight") + part
        tensors[name] = tensors[name][:-1]

    return change


def filled(part: str, code: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[MATRIX.removesuffix("weight") + part].reshape(-1).view(np.uint8)[...] = code

    return change


def replaced(part: str, value: Tensors) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[MATRIX.removesuffix("weight") + part] = value[""]

    return change


STATE = "weight.quant_state.bitsandbytes__nf4"
DAMAGED: list[tuple[str, Callable[[Tensors], None], str]] = [
    ("fp8-blocks", without("weight_scale_inv"), r"up_proj.weight_scale_inv: the tensor is missing, which"),
    ("fp8-blocks", shortened("weight_scale_inv"), r"weight_scale_inv has the shape \(2, 2\), not \(3, 2\) of blocks"),
    (
        "fp8-channel",
        shortened("weight_scale"),
        r"has the shape \(127, 1\), neither one value nor \(128, 1\)",
    ),
    ("fp8-tensor", filled("weight", 0x7F), r"codes of FP8 that are NaN"),
    ("fp8-tensor", filled("weight_scale_inv", 0xFF), r"a scale that is no finite number"),
    ("int4-group", without("weight_scale"), r"up_proj.weight_scale: the tensor is missing"),
    ("int4-group", shortened("weight_scale"), r"weight_scale has the shape \(127, 2\), not \(128, 2\)"),
    ("int4-zeros", without("weight_zero_point"), r"up_proj.weight_zero_point: the tensor is missing"),
    ("int4-zeros", shortened("weight_zero_point"), r"weight_zero_point has the shape \(120, 1\), not \(128, 1\)"),
    (
        "int4-group",
        replaced("weight_g_idx", {"": np.arange(64, dtype=np.int32)[::-1]}),
        r"its inputs are reordered \(weight_g_idx\)",
    ),
    ("mxfp4", filled("weight_scale", 255), r"a scale that is NaN \(E8M0 code 255\)"),
    ("mxfp4", shortened("weight_scale"), r"weight_scale has the shape \(127, 2\), not \(128, 2\)"),
    ("nvfp4", without("weight_global_scale"), r"up_proj.weight_global_scale: the tensor is missing"),
    ("nvfp4", shortened("weight_global_scale"), r"weight_global_scale has the shape \(0,\), not one value"),
    ("nvfp4", filled("weight_global_scale", 0), r"weight_global_scale is 0"),
    ("nvfp4-modelopt", shortened("weight_scale"), r"weight_scale has the shape \(127, 4\), not \(128, 4\)"),
    ("nf4", without(STATE), r"up_proj.weight.quant_state.bitsandbytes__nf4: the tensor is missing"),
    ("nf4", shortened(STATE), r"bad quantized tensor"),
    ("nf4", shortened("weight.absmax"), r"absmax has the shape \(127,\), not \(128,\)"),
    ("nf4", shortened("weight"), r"4095 bytes are not a matrix of \[128, 64\] codes"),
    ("nf4", replaced(STATE, {"": np.frombuffer(b'{"quant_type": "fp4"}', np.uint8)}), r"quant_type 'fp4' is not 'nf4'"),
    ("nf4-nested", without("weight.nested_absmax"), r"nested_absmax"),
    ("int8-rows", shortened("SCB"), r"SCB has the shape \(127,\), not \(128,\)"),
    ("int8-rows", filled("weight_format", 1), r"weight_format is not that of rows"),
]


@pytest.mark.parametrize(("name", "change", "words"), DAMAGED, ids=[f"{n}-{each[0]}" for n, each in enumerate(DAMAGED)])
def test_damaged_tensors_are_refused_by_name(
    copy: Path, name: str, change: Callable[[Tensors], None], words: str
) -> None:
    path = to_low_bits(copy, name)[0]
    tensors = stored(path)
    change(tensors)
    write_safetensors(path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=words):
        read(open_weights(path))


def read(weights: Weights) -> None:
    weights.check_types()
    weights.take_quantized(MATRIX, SHAPE)


def stored(path: Path) -> Tensors:
    """The tensors of a file of any type, by the format's header."""
    content = (path / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    kinds = {"F32": "f4", "I32": "i4", "I64": "i8", "U8": "u1", "I8": "i1"}
    found: Tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn}.get(entry["dtype"])
        low, high = (start + at for at in entry["data_offsets"])
        values = np.frombuffer(content[low:high], np.dtype(kind or kinds[entry["dtype"]]))
        found[name] = values.reshape(entry["shape"]).copy()
    return found


def test_a_part_of_another_type_and_an_unknown_part_are_refused(copy: Path) -> None:
    path = to_low_bits(copy, "nvfp4")[0]
    tensors = stored(path)
    module = MATRIX.removesuffix("weight")
    scale = tensors[f"{module}weight_scale"]
    tensors[f"{module}weight_scale"] = scale.view(np.uint8)
    write_safetensors(path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match="weight_scale: type U8 is not supported, only F8_E4M3"):
        open_weights(path).check_types()
    tensors |= {f"{module}weight_scale": scale, f"{module}pre_quant_scale": np.ones(64, np.float32)}
    write_safetensors(path / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match="pre_quant_scale: the tensor is not part of a llama model"):
        check_tensors(open_weights(path), ModelConfig.from_dir(path), path)
