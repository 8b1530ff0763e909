"""A checkpoint with the same weights in the compressed-tensors format, which vLLM reads.

int8: one scale for each output channel, and activations that are quantized for each token when they come (W8A8).
int4: symmetric, one scale for each group of inputs, packed into int32, lowest bits first (W4A16). The head and the
embedding stay as they are: vLLM does not quantize them.
Format: https://github.com/vllm-project/compressed-tensors
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import write_safetensors
from workers.checkpoints.checkpoint import open_weights

GROUP = 128
"""Inputs that share a scale in int4, or all of a smaller matrix."""
LAYERS = "model.layers."


def _arguments(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": False, **more}


SCHEMES: dict[str, dict[str, Any]] = {
    "int8": {
        "format": "int-quantized",
        "weights": _arguments(8, "channel"),
        "input_activations": _arguments(8, "token") | {"dynamic": True},
    },
    "int4": {"format": "pack-quantized", "weights": _arguments(4, "group", group_size=GROUP)},
}


def convert(checkpoint: Path, target: Path, precision: str) -> None:
    """Write the folder `target`. Raises `CheckpointError` for weights that cannot be read, and ValueError for an input
    width that is no multiple of `GROUP`, in int4."""
    tensors: dict[str, NDArray[Any]] = {}
    for name, tensor in open_weights(checkpoint).items():
        if name.startswith(LAYERS) and tensor.ndim == 2:
            tensors |= _quantized(name.removesuffix("weight"), tensor.astype(np.float32), precision)
        else:
            tensors[name] = tensor
    half = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copytree(checkpoint, half, ignore=shutil.ignore_patterns("*.safetensors*"))
    write_safetensors(half / "model.safetensors", tensors)
    config = json.loads((checkpoint / "config.json").read_text())
    config["quantization_config"] = _config(SCHEMES[precision])
    (half / "config.json").write_text(json.dumps(config, indent=1))
    half.rename(target)


def _config(scheme: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear"], **{key: value for key, value in scheme.items() if key != "format"}}
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": scheme["format"],
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _quantized(name: str, weight: NDArray[np.float32], precision: str) -> dict[str, NDArray[Any]]:
    """The tensors of one matrix; `name` ends with a dot."""
    if precision == "int8":
        integers, scales = _rounded(weight, 127)
        return {f"{name}weight": integers, f"{name}weight_scale": scales}
    rows, width = weight.shape
    if width % GROUP:
        raise ValueError(f"{name}weight: a width of {width} is no multiple of {GROUP}")
    integers, scales = _rounded(weight.reshape(rows, -1, GROUP), 7)
    nibbles = (integers.astype(np.int32) + 8).reshape(rows, -1, 8).astype(np.uint32)
    shifts = 4 * np.arange(8, dtype=np.uint32)
    packed = np.bitwise_or.reduce(nibbles << shifts, axis=2).view(np.int32)
    shape = np.array(weight.shape, np.int64)
    return {f"{name}weight_packed": packed, f"{name}weight_scale": scales[..., 0], f"{name}weight_shape": shape}


def _rounded(values: NDArray[np.float32], largest: int) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Integers up to `largest` and the bfloat16 scales of the last axis."""
    scales = np.maximum(np.abs(values).max(axis=-1, keepdims=True) / largest, 1e-8).astype(ml_dtypes.bfloat16)
    integers = np.clip(np.rint(values / scales.astype(np.float32)), -largest, largest)
    return integers.astype(np.int8), scales
