"""Checkpoints in FP8, FP4, NF4 and compressed-tensors, made from plain ones, and the weights that they mean.

Codes are made and read by the number types of ml_dtypes, independently of the reader under test. Sources:
https://huggingface.co/docs/transformers/quantization/finegrained_fp8, https://github.com/vllm-project/compressed-tensors,
https://github.com/NVIDIA/Model-Optimizer, https://github.com/bitsandbytes-foundation/bitsandbytes.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.checkpoints import make_checkpoint, write_safetensors
from tests.families import Tensors
from tests.quantized import pack_fields
from workers.checkpoints.checkpoint import Weights, open_weights

E4M3, E2M1 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float4_e2m1fn)
Made = tuple[Tensors, NDArray[np.float32]]
"""The tensors of a matrix by their endings, and the weights that they mean."""
Encode = Callable[[NDArray[np.float32]], Made]
NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)
"""Quantiles of a normal distribution: https://arxiv.org/abs/2305.14314, appendix E."""


def fp8(block: tuple[int, int] | None, scale: str, *, rows: bool = False) -> Encode:
    """FP8 with a scale for each block, each output (`rows`) or the matrix."""

    def encode(weights: NDArray[np.float32]) -> Made:
        high, wide = block or ((1, weights.shape[1]) if rows else weights.shape)
        grid = tuple(-(-size // part) for size, part in zip(weights.shape, (high, wide), strict=True))
        scales, codes = np.empty(grid, np.float32), np.empty(weights.shape, E4M3)
        meant = np.empty(weights.shape, np.float32)
        for row in range(grid[0]):
            for column in range(grid[1]):
                at = slice(row * high, (row + 1) * high), slice(column * wide, (column + 1) * wide)
                scales[row, column] = np.abs(weights[at]).max() / 448
                codes[at] = (weights[at] / scales[row, column]).astype(E4M3)
                meant[at] = codes[at].astype(np.float32) * scales[row, column]
        stored = scales if block or rows else scales.reshape(())
        return {"weight": codes, scale: stored, "input_scale": np.ones(1, np.float32)}, meant

    return encode


def integers(bits: int, group: int | None, *, packed: bool, symmetric: bool = True) -> Encode:
    """Integers of compressed-tensors."""

    def encode(weights: NDArray[np.float32]) -> Made:
        outputs, inputs = weights.shape
        groups = weights.reshape(outputs, -1, group or inputs)
        last = (1 << (bits - 1)) - 1
        low, high = groups.min(-1), groups.max(-1)
        reach = np.abs(groups).max(-1) / last if symmetric else (high - low) / (2 * last + 1)
        scales = reach.astype(ml_dtypes.bfloat16)
        step = scales.astype(np.float32)
        zeros = np.zeros(scales.shape) if symmetric else np.clip(-last - 1 - np.rint(low / step), -last - 1, last)
        found = np.clip(np.rint(groups / step[:, :, None]) + zeros[:, :, None], -last - 1, last)
        meant = ((found - zeros[:, :, None]) * step[:, :, None]).astype(np.float32).reshape(weights.shape)
        found = found.reshape(weights.shape)
        if not packed:
            return {"weight": found.astype(np.int8), "weight_scale": scales}, meant
        parts = {"weight_packed": pack_fields(found + last + 1, bits), "weight_scale": scales}
        if not symmetric:
            parts["weight_zero_point"] = np.ascontiguousarray(pack_fields(zeros.T + last + 1, bits).T)
        return parts | {"weight_shape": np.array(weights.shape, np.int64)}, meant

    return encode


def _pack_e2m1(codes: NDArray[Any]) -> NDArray[np.uint8]:
    """Pack numbers of four bits, which ml_dtypes keeps in bytes, the first of two in the low half."""
    fields = codes.view(np.uint8)
    return fields[:, ::2] | fields[:, 1::2] << np.uint8(4)


def mxfp4(weights: NDArray[np.float32]) -> Made:
    """FP4 with a power of two for 32 weights."""
    groups = weights.reshape(len(weights), -1, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(-1))) - 2
    codes = (groups / np.exp2(exponents)[:, :, None]).astype(E2M1)
    meant = (codes.astype(np.float32) * np.exp2(exponents)[:, :, None]).astype(np.float32)
    packed = _pack_e2m1(codes.reshape(weights.shape))
    scales = (exponents + 127).astype(np.uint8)
    return {"weight_packed": packed, "weight_scale": scales}, meant.reshape(weights.shape)


def nvfp4(codes: str, whole: str, *, divides: bool) -> Encode:
    """FP4 with a scale in FP8 for 16 weights and one for the matrix."""

    def encode(weights: NDArray[np.float32]) -> Made:
        groups = weights.reshape(len(weights), -1, 16)
        factor = np.float32(np.abs(weights).max() / (6 * 448))
        scales = (np.abs(groups).max(-1) / 6 / factor).astype(E4M3)
        step = scales.astype(np.float32) * factor
        numbers = (groups / step[:, :, None]).astype(E2M1)
        meant = (numbers.astype(np.float32) * step[:, :, None]).astype(np.float32).reshape(weights.shape)
        stored = np.array([1 / factor if divides else factor], np.float32)
        packed = _pack_e2m1(numbers.reshape(weights.shape))
        return {
            codes: packed,
            "weight_scale": scales,
            whole: stored,
            "input_global_scale": np.ones(1, np.float32),
        }, meant

    return encode


def nf4(*, nested: bool) -> Encode:
    """NF4 of bitsandbytes in blocks of 64; with `nested` the magnitudes are quantized again, in blocks of 256."""

    def encode(weights: NDArray[np.float32]) -> Made:
        blocks = weights.reshape(-1, 64)
        largest = np.abs(blocks).max(-1)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "shape": list(weights.shape), "dtype": "float32"}
        parts: Tensors = {"weight.quant_map": NF4, "weight.absmax": largest}
        if nested:
            offset, table = float(largest.mean()), np.linspace(-1, 1, 256, dtype=np.float32)
            parts["weight.nested_absmax"] = np.array(
                [np.abs(largest[at : at + 256] - offset).max() for at in range(0, len(largest), 256)], np.float32
            )
            outer = np.repeat(parts["weight.nested_absmax"], 256)[: len(largest)]
            codes = np.abs((largest - offset)[:, None] / outer[:, None] - table).argmin(-1)
            parts |= {"weight.absmax": codes.astype(np.uint8), "weight.nested_quant_map": table}
            largest = table[codes] * outer + np.float32(offset)
            state |= {"nested_blocksize": 256, "nested_offset": offset, "nested_dtype": "float32"}
        numbers = np.abs((blocks / largest[:, None])[:, :, None] - NF4).argmin(-1).astype(np.uint8).reshape(-1)
        text = np.frombuffer(json.dumps(state).encode(), np.uint8)
        packed = (numbers[::2] << np.uint8(4) | numbers[1::2]).reshape(-1, 1)
        meant = (NF4[numbers].reshape(blocks.shape) * largest[:, None]).astype(np.float32).reshape(weights.shape)
        return parts | {"weight": packed, "weight.quant_state.bitsandbytes__nf4": text}, meant

    return encode


def int8_rows(weights: NDArray[np.float32]) -> Made:
    """LLM.int8() of bitsandbytes."""
    largest = np.abs(weights).max(-1)
    found = np.rint(weights / largest[:, None] * 127).astype(np.int8)
    parts = {"weight": found, "SCB": largest, "weight_format": np.zeros((), np.uint8)}
    return parts, (found * (largest / np.float32(127))[:, None]).astype(np.float32)


def compressed(format: str, bits: int, kind: str, strategy: str, **weights: Any) -> dict[str, Any]:
    """`quantization_config` of compressed-tensors."""
    plan = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False} | weights
    group = {"targets": ["Linear"], "weights": plan, "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}}


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
NVFP4_PLAN = compressed("nvfp4-pack-quantized", 4, "float", "tensor_group", group_size=16)
FORMATS: Mapping[str, tuple[dict[str, Any], Encode]] = {
    "fp8-blocks": (FP8 | {"weight_block_size": [48, 40]}, fp8((48, 40), "weight_scale_inv")),
    "fp8-tensor": (FP8 | {"weight_block_size": None}, fp8(None, "weight_scale_inv")),
    "fp8-channel": (compressed("float-quantized", 8, "float", "channel"), fp8(None, "weight_scale", rows=True)),
    "fp8-modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8(None, "weight_scale")),
    "int4-group": (
        compressed("pack-quantized", 4, "int", "group", group_size=32),
        integers(4, 32, packed=True),
    ),
    "int4-zeros": (
        compressed("pack-quantized", 4, "int", "group", group_size=64, symmetric=False),
        integers(4, 64, packed=True, symmetric=False),
    ),
    "int8-channel": (compressed("int-quantized", 8, "int", "channel"), integers(8, None, packed=False)),
    "int8-packed": (compressed("pack-quantized", 8, "int", "channel"), integers(8, None, packed=True)),
    "mxfp4": (compressed("mxfp4-pack-quantized", 4, "float", "group", group_size=32), mxfp4),
    "nvfp4": (NVFP4_PLAN, nvfp4("weight_packed", "weight_global_scale", divides=True)),
    "nvfp4-modelopt": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
        nvfp4("weight", "weight_scale_2", divides=False),
    ),
    "nf4": (BITSANDBYTES, nf4(nested=False)),
    "nf4-nested": (BITSANDBYTES | {"bnb_4bit_use_double_quant": True}, nf4(nested=True)),
    "int8-rows": ({"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, int8_rows),
}
"""`quantization_config` and the encoding of a matrix."""


def to_low_bits(
    path: Path, name: str, prefix: str = "", others: Mapping[str, NDArray[Any]] = MappingProxyType({})
) -> tuple[Path, Mapping[str, NDArray[np.float32]]]:
    """Quantize the layers' matrices of the plain checkpoint at `path`; embedding, norms and routers stay.

    The names of tensors get a prefix, and `others` are added.

    Returns the path, and the weights that the quantized matrices mean.
    """
    plan, encode = FORMATS[name]
    tensors: Tensors = {}
    meant: dict[str, NDArray[np.float32]] = {}
    for weight, tensor in open_weights(path).items():
        matrix = tensor.ndim == 2 and weight.endswith(".weight")
        if not matrix or "layers" not in weight or weight.endswith(".gate.weight"):
            tensors[weight] = tensor
            continue
        parts, meant[weight] = encode(tensor.astype(np.float32))
        tensors |= {weight.removesuffix("weight") + part: value for part, value in parts.items()}
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": plan}))
    write_safetensors(
        path / "model.safetensors", {prefix + name: each for name, each in tensors.items()} | dict(others)
    )
    return path, meant


def to_stacked_mxfp4(path: Path) -> tuple[Path, Path]:
    """Quantize the experts of the plain gpt-oss checkpoint at `path`, as they are published: stacks [experts, outputs,
    groups, 16]. Returns the path, and that of a plain checkpoint with the weights that they mean."""
    plain = path.with_name(f"{path.name}-plain")
    shutil.copytree(path, plain)
    tensors: Tensors = {}
    meant: Tensors = {}
    for name, tensor in load_file(path / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = meant[name] = tensor
            continue
        count, inputs, outputs = tensor.shape
        parts, weights = mxfp4(np.swapaxes(tensor, 1, 2).reshape(-1, inputs))
        tensors[f"{name}_blocks"] = parts["weight_packed"].reshape(count, outputs, inputs // 32, 16)
        tensors[f"{name}_scales"] = parts["weight_scale"].reshape(count, outputs, inputs // 32)
        meant[name] = np.ascontiguousarray(np.swapaxes(weights.reshape(count, outputs, inputs), 1, 2))
    plan = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": plan}))
    write_safetensors(path / "model.safetensors", tensors)
    write_safetensors(plain / "model.safetensors", meant)
    return path, plain


def make_low_bits(path: Path, name: str, family: str = "llama", **options: Any) -> Path:
    """Make a small checkpoint in one of `FORMATS`."""
    return to_low_bits(make_checkpoint(path, family, tied=family == "llama", **options), name)[0]


def served_weights(weights: Weights) -> Tensors:
    """The weights that a model computes with, in plain numbers."""
    return {
        name: weights[name]
        if weights.format(name) is None
        else weights.take_quantized(name, weights.shape(name)).dequantize()
        for name in weights
    }
