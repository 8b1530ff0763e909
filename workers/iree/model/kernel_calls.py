"""Calls of kernels in what JAX traces: `lower` puts the kernels in their places, by name."""

from typing import Any

import jax
import jax.numpy as jnp


def numbers(count: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count,), jnp.int32)


def words(rows: int, width: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, width), jnp.int32)


def floats(rows: int, width: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, width), jnp.float32)


def named(name: str, **parts: jax.Array | None) -> str:
    """A kernel's name, which tells the operands that it may have from those that it has."""
    return name + "".join(f"_{part}" for part, operand in parts.items() if operand is not None)


def call(name: str, results: Any, *operands: jax.Array | None) -> Any:
    """A kernel's call with the operands that there are; `lower` puts the kernel in its place."""
    return jax.ffi.ffi_call(name, results)(*(operand for operand in operands if operand is not None))
