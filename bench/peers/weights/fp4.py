"""Checkpoints of random weights in MLX's modes with FP4 (E2M1): groups of 32 weights with a power of two (`mxfp4`), or
of 16 with a number of FP8 (`nvfp4`).

https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import write_safetensors
from workers.checkpoints.checkpoint import open_weights
from workers.checkpoints.low_bits.mlx_modes import MICROSCALED

Fp4Mode = Literal["mxfp4", "nvfp4"]
_LARGEST = np.float32(6)
"""The largest value of E2M1, and the exponent of it."""
_MAX_EXPONENT = 2
_BIAS = 127
_SMALLEST_SCALE = np.float32(2**-9)
"""The least positive number of FP8 (E4M3)."""


def to_fp4(checkpoint: Path, mode: Fp4Mode) -> Path:
    """Quantize all matrices of a checkpoint, the embedding included; return the folder beside it, which is kept."""
    target = checkpoint.with_name(f"{checkpoint.name}-{mode}")
    if target.exists():
        return target
    half = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copytree(checkpoint, half, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors: dict[str, NDArray[Any]] = {}
    for name, weight in open_weights(checkpoint).items():
        if weight.ndim != 2:
            tensors[name] = weight
            continue
        tensors[name], tensors[f"{name.removesuffix('weight')}scales"] = _quantized(weight.astype(np.float32), mode)
    write_safetensors(half / "model.safetensors", tensors)
    config = json.loads((half / "config.json").read_text())
    group, bits = MICROSCALED[mode]
    plan = {"group_size": group, "bits": bits, "mode": mode}
    (half / "config.json").write_text(json.dumps(config | {"quantization": plan}))
    half.rename(target)
    return target


def _quantized(weight: NDArray[np.float32], mode: Fp4Mode) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Return the codes [outputs, inputs / 8], eight in a word, the first in its lowest bits, and the codes of the
    scales of groups."""
    groups = weight.reshape(len(weight), -1, MICROSCALED[mode][0])
    stored, scales = (_powers_of_two if mode == "mxfp4" else _eight_bits)(np.abs(groups).max(-1))
    codes = (groups / scales[:, :, None]).astype(ml_dtypes.float4_e2m1fn).reshape(weight.shape)
    bits = codes.view(np.uint8)
    both = np.ascontiguousarray(bits[:, ::2] | bits[:, 1::2] << np.uint8(4))
    return both.view(np.uint32), stored


def _powers_of_two(largest: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return scales of groups as E8M0, and their values."""
    largest = np.maximum(largest, np.finfo(np.float32).tiny)  # of a group of zeros as well
    exponents = np.maximum(np.floor(np.log2(largest)) - _MAX_EXPONENT, -_BIAS)
    return (exponents + _BIAS).astype(np.uint8), np.exp2(exponents)


def _eight_bits(largest: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return scales of groups as E4M3, and their values."""
    scales = np.maximum(largest / _LARGEST, _SMALLEST_SCALE).astype(ml_dtypes.float8_e4m3fn)
    return scales.view(np.uint8), scales.astype(np.float32)
