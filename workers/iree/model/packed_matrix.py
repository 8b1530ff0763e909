"""Quantized matrices in the functions that JAX traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from workers.iree.kernels.matmul.packing import Packing
from workers.iree.lazy_jax import jax


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A quantized matrix, packed: `Ops.linear` multiplies by it in place of a plain array."""

    data: jax.Array
    """int8 [tiles, bytes of a tile]."""
    packing: Packing
    inputs: int


Weight: TypeAlias = "jax.Array | PackedMatrix"
"""A stored matrix, as it is or quantized."""
