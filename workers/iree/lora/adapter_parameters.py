"""The matrices of adapters in the memory of a worker, as its graphs read them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import iree.runtime as rt
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.lora.adapted_matrices import AdapterStack, adapter_stacks, read_adapters
from workers.checkpoints.lora.adapter_weights import AdapterWeights
from workers.iree.lora.lora_plan import parameter_names
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import Stored
from workers.iree.model.tiled_ops import TiledOps

ALIGNMENT = 64
"""Bytes; IREE computes in place on host memory only where it is aligned so."""
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def add_adapters(
    index: rt.ParameterIndex,
    config: ModelConfig,
    modules: Sequence[tuple[str, Path]],
    max_rank: int,
    weights: Sequence[Stored],
    ops: TiledOps | PlainOps,
) -> int:
    """Read adapters by name and directory, and add their matrices to the parameters of a model's graphs, beside those
    that the model has as `weights`. `config` is that of the checkpoint, without padding.

    Returns their bytes. The index keeps the memory. Raises `CheckpointError`.
    """
    adapters, stored, total = (
        read_adapters(modules, max_rank, largest(ops.dtype)),
        {each.name: each for each in weights},
        0,
    )
    for stack in adapter_stacks(config, adapters):
        for name, array in _parameters(stack, adapters, stored[stack.name], ops):
            index.add_buffer(name, aligned(array).reshape(-1).view(np.uint8))
            total += array.nbytes
    return total


def _parameters(
    stack: AdapterStack, adapters: Sequence[AdapterWeights], stored: Stored, ops: TiledOps | PlainOps
) -> Iterator[tuple[str, NDArray[Any]]]:
    a, b = (each.astype(TYPES[ops.dtype]) for each in stack.matrices(adapters))
    outputs, inputs = stored.axes or (None, None)
    a = a if inputs is None else inputs.pad(a, 1)
    b = b if outputs is None else outputs.pad(b, 0)
    yield from zip(parameter_names(stack.name), (ops.store(a), ops.store(b), stack.owners), strict=True)


def largest(dtype: str) -> float:
    """Return the largest finite value of a type in which adapters are stored."""
    return float(ml_dtypes.finfo(TYPES[dtype]).max)


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of an array where graphs can read it in place."""
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    out = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out
