"""The form of each parameter in the weight archive: packed, packed and quantized, or in rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import LayerConfig
from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized, quantize
from workers.checkpoints.weights import Weights
from workers.iree.kernels.ir.mlir_types import LANES
from workers.iree.kernels.matmul.packing import Packing, made_format, restore, stored_format
from workers.iree.lazy_jax import jax
from workers.iree.model.decoder import Parameter, parameters
from workers.iree.model.ops import Ops, Shape
from workers.iree.model.packed_matrix import PackedMatrix, Weight
from workers.iree.model.tiled_ops import TiledOps
from workers.iree.model.width_padding import Axes
from workers.precision import Quantize

_NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8}
WEIGHTS_AT_ONCE = 1 << 18
"""Weights that are quantized at once, in the caches of a core."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of the weight archive."""

    parameter: Parameter
    shape: Shape
    dtype: str
    packing: Packing | None
    """The packing of a quantized matrix; `shape` and `dtype` are then those of its bytes."""
    axes: Axes = ()
    """The axes of the tensor before it is packed, if any is padded."""

    def typed(self, array: jax.Array) -> Weight:
        """Return the tensor of a graph as `Ops` takes it."""
        if self.packing is None:
            return array
        return PackedMatrix(array, self.packing, self.padded_shape[1])

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def padded_shape(self) -> Shape:
        """The shape of the tensor before it is packed, padding included."""
        return _padded_shape(self.axes, self.parameter)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(np.dtype(_NUMPY[self.dtype]).itemsize)


def stored_parameters(config: ModelConfig, ops: Ops, weights: Weights, kind: Quantize) -> list[Stored]:
    """Return every parameter as the archive stores it. A tied head that is quantized is the embedding.

    Reads the files' headers only. Raises `CheckpointError`.
    """
    stored = store_each(parameters(config, ops.dtype), ops, weights, kind, config.plan)
    packed = {each.name for each in stored if each.packing is not None}
    once = config.tie_embeddings and "embedding" in packed  # rows are looked up in what the head multiplies by
    return [each for each in stored if not (once and each.name == "head")]


def store_each(
    wanted: Sequence[Parameter], ops: Ops, weights: Weights, kind: Quantize, plan: Sequence[LayerConfig] = ()
) -> list[Stored]:
    """Return parameters as the archive stores them. The `plan` is that of a model whose widths are padded. Raises
    `CheckpointError`."""
    return [_stored(parameter, ops, weights, kind, plan) for parameter in wanted]


def quantization_of(stored: Sequence[Stored]) -> str:
    """Return the types of the quantized matrices: "int8", "int4", "fp4", "int4+int8" for both, empty for none."""
    return "+".join(sorted({each.packing.format.width for each in stored if each.packing is not None}))


def pack_parameter(stored: Stored, weights: Weights, ops: Ops) -> NDArray[Any]:
    """Return the values of a tensor of the archive. Raises `CheckpointError`."""
    parameter, packing = stored.parameter, stored.packing
    if packing is None:
        whole = _padded(_whole(parameter, weights, parameter.dtype), stored.axes)
        if parameter.taps:
            return np.ascontiguousarray(whole.reshape(len(whole), -1).T)
        return ops.store(whole) if parameter.matrix else whole
    out, done = np.empty(stored.shape, np.int8), 0
    # Each by itself, for each is whole tiles: a layer's experts take several times the memory before they are packed.
    for number in range(len(parameter.sources)):
        done += _pack_source(out[done:], number, stored, weights, packing)
    return out


def _pack_source(out: NDArray[np.int8], number: int, stored: Stored, weights: Weights, packing: Packing) -> int:
    """Pack one of the checkpoint's tensors into the first tiles of `out`; return their number."""
    parameter = stored.parameter
    name, shape = parameter.sources[number]
    if weights.format(name) is None:
        matrix = _source(parameter, number, weights).astype(_NUMPY[parameter.dtype], copy=False)
        return _quantize_into(out, _padded(matrix, stored.axes), packing)
    quantized = weights.take_quantized(name, shape)
    if parameter.orders and (order := parameter.orders[number]) is not None:
        quantized = quantized.reordered(order.rows())
    levels = _padded_outputs(restore(quantized, packing.format), stored.axes)
    tiles = packing.stored_shape(*levels.levels.shape)[0]
    packing.pack_into(out[:tiles], levels)
    return tiles


def _stored(parameter: Parameter, ops: Ops, weights: Weights, kind: Quantize, plan: Sequence[LayerConfig]) -> Stored:
    axes: Axes = ()
    if isinstance(ops, TiledOps) and ops.padding is not None:
        axes = ops.padding.axes(parameter.name, plan)
    shape = _padded_shape(axes, parameter)
    quantizable = parameter.quantizable and isinstance(ops, TiledOps)
    if quantizable and (format := _format(parameter, axes, weights, kind)) is not None:
        packing = Packing(format)
        return Stored(parameter, packing.stored_shape(*shape), "int8", packing, axes)
    if parameter.matrix:
        shape = ops.stored_shape(*shape)
    if parameter.taps:
        shape = (shape[2], shape[0])
    return Stored(parameter, shape, parameter.dtype, None, axes)


def _format(parameter: Parameter, axes: Axes, weights: Weights, kind: Quantize) -> GroupFormat | None:
    """Return a format that holds those of the checkpoint, where every part is quantized; the one asked for, where no
    part is."""
    formats = {weights.format(name) for name, _ in parameter.sources}
    inputs = _padded_shape(axes, parameter)[1]
    found = {each for each in formats if each is not None}
    if not found:
        return made_format(kind, inputs)
    if axes and axes[1] is not None:
        return None  # padding moves inputs to other groups
    return stored_format(found, inputs) if found == formats else None


def _padded_shape(axes: Axes, parameter: Parameter) -> Shape:
    """Return the shape of a whole parameter, padded."""
    shape = parameter.shape
    if not axes:
        return shape
    return tuple(size if axis is None else axis.total(size) for axis, size in zip(axes, shape, strict=True))


def _padded(values: NDArray[Any], axes: Axes) -> NDArray[Any]:
    for number, axis in enumerate(axes):
        values = values if axis is None else axis.pad(values, number)
    return values


def _padded_outputs(matrix: Quantized, axes: Axes) -> Quantized:
    """Pad the outputs of a quantized matrix. Those that are added have levels, scales and zeros of zero."""
    axis = axes[0] if axes else None
    if axis is None:
        return matrix
    zeros = None if matrix.zeros is None else axis.pad(matrix.zeros, 0)
    return Quantized(matrix.format, axis.pad(matrix.levels, 0), axis.pad(matrix.scales, 0), zeros)


def _quantize_into(out: NDArray[np.int8], matrix: NDArray[Any], packing: Packing) -> int:
    """Quantize a matrix into the first tiles of `out`, a few at a time; return their number."""
    tiles, inputs = -(-len(matrix) // LANES), matrix.shape[1]
    step = max(1, WEIGHTS_AT_ONCE // (LANES * inputs))
    for at in range(0, tiles, step):
        end = min(at + step, tiles)
        packing.pack_into(out[at:end], quantize(matrix[at * LANES : end * LANES], packing.format))
    return tiles


def _whole(parameter: Parameter, weights: Weights, dtype: str) -> NDArray[Any]:
    parts = [_source(parameter, number, weights) for number in range(len(parameter.sources))]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    whole = whole.astype(_NUMPY[dtype], copy=False)
    return whole + whole.dtype.type(parameter.offset) if parameter.offset else whole


def _source(parameter: Parameter, number: int, weights: Weights) -> NDArray[Any]:
    """Return one of the checkpoint's tensors, its rows in the order in which they are read."""
    values = weights.take(*parameter.sources[number])
    if parameter.flat:
        values = values.reshape(-1)
    if parameter.part is not None:
        return parameter.part.take(values)
    order = parameter.orders[number] if parameter.orders else None
    return values if order is None else values[order.rows()]
