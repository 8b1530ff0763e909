"""A packed quantized matrix as the functions that JAX traces see it."""

from dataclasses import dataclass

import jax

from workers.iree.kernels.matmul.packing import Packing


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed matrix in a graph: what `Ops.linear` multiplies by in place of a plain array."""

    data: jax.Array
    """int8 [tiles, bytes of a tile]."""
    packing: Packing
    inputs: int
