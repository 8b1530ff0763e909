"""Checkpoints in the formats of AutoGPTQ and AutoAWQ, made from plain ones.

GPTQ packs the inputs of a matrix into words, and AWQ eight outputs in an order of its own; both keep matrices
transposed, and zeros as levels. https://github.com/AutoGPTQ/AutoGPTQ, https://github.com/casper-hansen/AutoAWQ.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import write_safetensors
from tests.families import Tensors
from workers.checkpoints.checkpoint import open_weights
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output in each of a word's eight fields."""


def quantize_with_zeros(weights: NDArray[Any], bits: int, group: int, *, symmetric: bool) -> Quantized:
    """Quantize with zeros that are levels, as both formats have them."""
    outputs, inputs = weights.shape
    groups = weights.astype(np.float32).reshape(outputs, -1, group)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    last = (1 << bits) - 1
    scales = np.maximum((2 * np.maximum(-low, high) if symmetric else high - low) / last, 1e-4).astype(np.float16)
    zeros = np.full(scales.shape, (last + 1) // 2) if symmetric else np.rint(-low / scales.astype(np.float32))
    levels = np.rint(groups / scales.astype(np.float32)[:, :, None]) + zeros[:, :, None]
    levels = np.clip(levels, 0, last).astype(np.uint8).reshape(outputs, inputs)
    zero: Literal["middle", "level"] = "middle" if symmetric else "level"
    stored = None if symmetric else zeros.astype(np.float16)
    return Quantized(GroupFormat(bits, group, zero, "float16"), levels, scales, stored)


def pack_fields(fields: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Pack [rows, columns] into words [rows, columns * bits / 32], the first field lowest."""
    words = fields.astype(np.uint32).reshape(len(fields), -1, 32 // bits)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    packed: NDArray[np.uint32] = np.bitwise_or.reduce(words << shifts, axis=-1).astype(np.uint32)
    return packed.view(np.int32)


def gptq_parts(matrix: Quantized, zero_offset: int = 1) -> Tensors:
    bits, inputs = matrix.format.bits, matrix.levels.shape[1]
    packed = pack_fields(matrix.levels, bits)
    return {
        "qweight": np.ascontiguousarray(packed.T),
        "qzeros": pack_fields(_zeros(matrix).T - zero_offset, bits),
        "scales": np.ascontiguousarray(matrix.scales.T),
        "g_idx": (np.arange(inputs) // matrix.format.group).astype(np.int32),
    }


def awq_parts(matrix: Quantized) -> Tensors:
    def pack(fields: NDArray[Any]) -> NDArray[np.int32]:
        rows, columns = fields.shape
        return pack_fields(fields.reshape(rows, columns // 8, 8)[:, :, AWQ_ORDER].reshape(rows, columns), 4)

    scales = np.ascontiguousarray(matrix.scales.T)
    return {"qweight": pack(matrix.levels.T), "qzeros": pack(_zeros(matrix).T), "scales": scales}


def _zeros(matrix: Quantized) -> NDArray[Any]:
    return np.full(matrix.scales.shape, matrix.format.middle) if matrix.zeros is None else matrix.zeros


PARTS: Mapping[str, Callable[[Quantized], Tensors]] = {"gptq": gptq_parts, "awq": awq_parts}


def requantize(
    path: Path, method: Literal["gptq", "awq"], *, bits: int = 4, group: int = 32, symmetric: bool = False
) -> Path:
    """Quantize the layers' matrices of the plain checkpoint at `path`; embedding, norms, routers and matrices that do
    not fill words or groups stay."""
    tensors: Tensors = {}
    for name, tensor in open_weights(path).items():
        packed = tensor.ndim == 2 and tensor.shape[0] % 8 == 0 and tensor.shape[1] % group == 0
        if not packed or "layers" not in name or name.endswith(".gate.weight"):
            tensors[name] = tensor
            continue
        parts = PARTS[method](quantize_with_zeros(tensor, bits, group, symmetric=symmetric))
        tensors |= {f"{name.removesuffix('weight')}{part}": value for part, value in parts.items()}
    plan: dict[str, Any] = {"quant_method": method, "bits": bits, "group_size": group}
    plan |= {"sym": symmetric, "desc_act": False} if method == "gptq" else {"zero_point": not symmetric}
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": plan}))
    write_safetensors(path / "model.safetensors", tensors)
    return path
