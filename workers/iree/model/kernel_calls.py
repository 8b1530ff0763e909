"""Calls of kernels in the functions that JAX traces; `workers.iree.build.lower` inserts the kernels, by name."""

from __future__ import annotations

from typing import Any

from workers.iree.lazy_jax import jax, jnp


def numbers(count: int) -> jax.ShapeDtypeStruct:
    """Return the type of int32 [count]."""
    return jax.ShapeDtypeStruct((count,), jnp.int32)


def words(rows: int, width: int) -> jax.ShapeDtypeStruct:
    """Return the type of packed words, int32 [rows, width]."""
    return jax.ShapeDtypeStruct((rows, width), jnp.int32)


def floats(rows: int, width: int) -> jax.ShapeDtypeStruct:
    """Return the type of float32 [rows, width]."""
    return jax.ShapeDtypeStruct((rows, width), jnp.float32)


def named(name: str, **parts: jax.Array | None) -> str:
    """Return a kernel's name with the optional operands that it has."""
    return name + "".join(f"_{part}" for part, operand in parts.items() if operand is not None)


def call(name: str, results: Any, *operands: jax.Array | None) -> Any:
    """Call a kernel with the operands that are not None."""
    return jax.ffi.ffi_call(name, results)(*(operand for operand in operands if operand is not None))
