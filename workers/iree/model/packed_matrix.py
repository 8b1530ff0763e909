"""Quantized matrices in the functions that JAX traces."""

from dataclasses import dataclass

import jax

from workers.iree.kernels.matmul.packing import Packing


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A quantized matrix, packed: `Ops.linear` multiplies by it in place of a plain array."""

    data: jax.Array
    """int8 [tiles, bytes of a tile]."""
    packing: Packing
    inputs: int


Weight = jax.Array | PackedMatrix
"""A stored matrix, as it is or quantized."""
