"""A tensor of another type than its values is refused by name, with the same text by both backends.

MLX reads F8_E4M3, BOOL and all integers as arrays of integers and computes with them: the answers would be garbage.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.attacks.checkpoints.loading import BACKENDS, refusal
from tests.checkpoints import make_checkpoint, stack_experts, write_safetensors
from tests.quantized import requantize
from workers.checkpoints.checkpoint import ModelConfig, open_weights
from workers.engine.runner import Chunk
from workers.load_options import LoadOptions

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton-serve[iree]'")
pytest.importorskip("mlx_lm", reason="the MLX backend is not installed: pip install 'baton-serve[mlx]'")

BITS: Mapping[str, int] = {
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
    "I16": 16,
    "U16": 16,
    "I32": 32,
    "U32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
"""Types of safetensors that are no weights, with the bits of a value."""
FLOATS: Mapping[str, int] = {"F16": 16, "BF16": 16, "F32": 32}
ALL: Mapping[str, int] = {**BITS, **FLOATS}
DOWN, STACK = "model.layers.0.mlp.down_proj", "model.layers.0.mlp.switch_mlp.up_proj"


def stacked(path: Path) -> Path:
    make_checkpoint(path, "qwen3_moe", tied=False)
    write_safetensors(path / "model.safetensors", stack_experts(dict(open_weights(path))))
    return path


FORMATS: Mapping[str, Callable[[Path], Path]] = {
    "plain": make_checkpoint,
    "stacked": stacked,
    "mlx": lambda path: make_checkpoint(path, quantized_bits=4, tied=False),
    "mlx-stacked": lambda path: make_checkpoint(path, "qwen3_moe", quantized_bits=4, tied=False),
    "awq": lambda path: requantize(make_checkpoint(path, dtype="float16"), "awq"),
}
WORDS = {"I32", "U32"}
PARTS: Mapping[tuple[str, str], set[str]] = {
    ("plain", "model.norm.weight"): set(FLOATS),
    ("plain", f"{DOWN}.weight"): set(FLOATS),
    ("stacked", f"{STACK}.weight"): set(FLOATS),
    ("mlx", f"{DOWN}.weight"): {"U32"},
    ("mlx", f"{DOWN}.scales"): set(FLOATS),
    ("mlx", f"{DOWN}.biases"): set(FLOATS),
    ("mlx-stacked", f"{STACK}.weight"): {"U32"},
    ("mlx-stacked", f"{STACK}.biases"): set(FLOATS),
    ("awq", f"{DOWN}.qweight"): WORDS,
    ("awq", f"{DOWN}.qzeros"): WORDS,
    ("awq", f"{DOWN}.scales"): set(FLOATS),
}
"""A tensor of each format, and the types that it may have."""
CASES = [
    pytest.param(format, name, dtype, id=f"{format}-{name.rpartition('.')[2]}-{dtype}")
    for (format, name), right in PARTS.items()
    for dtype in ALL
    if dtype not in right
]


def retype(file: Path, name: str, dtype: str) -> None:
    """Give a tensor another type and zeros as values, in a file that is valid otherwise."""
    stored = file.read_bytes()
    length = int.from_bytes(stored[:8], "little")
    header, content = json.loads(stored[8 : 8 + length]), stored[8 + length :]
    parts, offset = [], 0
    for key, tensor in header.items():
        if key == "__metadata__":
            continue
        first, last = tensor["data_offsets"]
        part = content[first:last]
        if key == name:
            tensor["dtype"] = dtype
            part = bytes(math.prod(tensor["shape"]) * ALL[dtype] // 8)
        tensor["data_offsets"] = [offset, offset + len(part)]
        offset += len(part)
        parts.append(part)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write_bytes(b"".join([len(encoded).to_bytes(8, "little"), encoded, *parts]))


@pytest.mark.parametrize(("format", "name", "dtype"), CASES)
def test_a_tensor_of_another_type_is_refused(tmp_path: Path, format: str, name: str, dtype: str) -> None:
    path = FORMATS[format](tmp_path / "model")
    file = path / "model.safetensors"
    retype(file, name, dtype)
    texts = {refusal(path, backend) for backend in BACKENDS}
    right = " or ".join(sorted(PARTS[format, name]))
    assert texts == {f"{file}: {name}: type {dtype} is not supported, only {right}"}


@pytest.mark.parametrize("part", PARTS, ids="-".join)
def test_the_same_tensor_of_its_own_type_is_read(tmp_path: Path, part: tuple[str, str]) -> None:
    """Otherwise the refusals above would prove nothing."""
    format, name = part
    path = FORMATS[format](tmp_path / "model")
    for dtype in PARTS[part]:
        retype(path / "model.safetensors", name, dtype)
        open_weights(path).check_types()


def test_a_file_that_the_index_does_not_name_is_not_read(tmp_path: Path) -> None:
    """mlx-lm reads every `model*.safetensors` of a folder, so that a stray file would replace weights."""
    from workers.mlx.runner import MlxRunner  # it may not be installed

    def logits(path: Path) -> NDArray[np.float32]:
        options = LoadOptions(device="cpu", slots=1, context=48, cache_dir=path)
        runner = MlxRunner.load(path, ModelConfig.from_dir(path), options, lambda *_: None)
        values = runner.logits(Chunk(0, (5, 6, 7), 0, 0))
        runner.close()
        return values

    path = make_checkpoint(tmp_path / "model")
    expected = logits(path)
    stray = {name: np.zeros_like(tensor) for name, tensor in open_weights(path).items()}
    write_safetensors(path / "model-stray.safetensors", stray)
    np.testing.assert_array_equal(logits(path), expected)
