"""A checkpoint of random weights in MLX's mode `mxfp4`: 32 weights of four bits (E2M1) with a power of two.

https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
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
from workers.checkpoints.low_bits.fp4_layouts import MX_GROUP

_MAX_EXPONENT = 2
"""That of the largest value of E2M1, which is 6."""
_BIAS = 127


def to_mxfp4(checkpoint: Path) -> Path:
    """Quantize all matrices of a checkpoint, the embedding included; return the folder beside it, which is kept."""
    target = checkpoint.with_name(f"{checkpoint.name}-mxfp4")
    if target.exists():
        return target
    half = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copytree(checkpoint, half, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors: dict[str, NDArray[Any]] = {}
    for name, weight in open_weights(checkpoint).items():
        if weight.ndim != 2:
            tensors[name] = weight
            continue
        tensors[name], tensors[f"{name.removesuffix('weight')}scales"] = _quantized(weight.astype(np.float32))
    write_safetensors(half / "model.safetensors", tensors)
    config = json.loads((half / "config.json").read_text())
    plan = {"group_size": MX_GROUP, "bits": 4, "mode": "mxfp4"}
    (half / "config.json").write_text(json.dumps(config | {"quantization": plan}))
    half.rename(target)
    return target


def _quantized(weight: NDArray[np.float32]) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Return the codes [outputs, inputs / 8], eight in a word, the first in its lowest bits, and the exponents of
    groups."""
    groups = weight.reshape(len(weight), -1, MX_GROUP)
    largest = np.maximum(np.abs(groups).max(-1), np.finfo(np.float32).tiny)  # of a group of zeros as well
    exponents = np.maximum(np.floor(np.log2(largest)) - _MAX_EXPONENT, -_BIAS)
    codes = (groups / np.exp2(exponents)[:, :, None]).astype(ml_dtypes.float4_e2m1fn).reshape(weight.shape)
    bits = codes.view(np.uint8)
    both = np.ascontiguousarray(bits[:, ::2] | bits[:, 1::2] << np.uint8(4))
    return both.view(np.uint32), (exponents + _BIAS).astype(np.uint8)
