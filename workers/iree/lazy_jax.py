"""JAX, imported when an attribute of it is first read.

A worker whose graphs are all compiled traces nothing: without JAX it starts 0.3 s sooner and takes 120 MB less. Modules
that import these names need `from __future__ import annotations`: an annotation with `jax.Array` is such a read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401  # names bfloat16 to NumPy
import numpy as np

JAX_OPTIONS = {
    # JAX only traces here. By default it looks for accelerators, warns that it found no TPU, and reserves most of a
    # GPU.
    "jax_platforms": "cpu",
    # The text of a graph depends on these, and the environment can set them. They are not in a graph's key.
    "eager_constant_folding": False,
    "jax_default_matmul_precision": None,
    "jax_disable_jit": False,
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_use_simplified_jaxpr_constants": False,
    # With other values of these, nothing can be traced.
    "jax_error_checking_behavior_divide": "ignore",
    "jax_error_checking_behavior_nan": "ignore",
    "jax_error_checking_behavior_oob": "ignore",
    "jax_no_tracing": False,
    "jax_numpy_rank_promotion": "allow",
}
"""The options of JAX in every process that traces; a release of JAX may lack some of them."""


@functools.cache
def jax_versions() -> tuple[str, str]:
    """The versions of jax and jaxlib, which are not imported for it."""
    return version("jax"), version("jaxlib")


if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax
else:

    class _LazyModule:
        """Stands for a module until an attribute of it is read."""

        def __init__(self, load: Callable[[], ModuleType]) -> None:
            self._load = load

        def __getattr__(self, name: str) -> Any:
            value = getattr(self._load(), name)
            setattr(self, name, value)  # where the next read finds it
            return value

    @functools.cache
    def _load_jax() -> ModuleType:
        import jax

        for name in JAX_OPTIONS.keys() & jax.config.values.keys():
            jax.config.update(name, JAX_OPTIONS[name])
        return jax

    def _load_numpy() -> ModuleType:
        return _load_jax().numpy

    def _load_lax() -> ModuleType:
        return _load_jax().lax

    jax = _LazyModule(_load_jax)
    jnp = _LazyModule(_load_numpy)
    lax = _LazyModule(_load_lax)


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The shape and the type of an array."""

    shape: tuple[int, ...]
    dtype: str
    """The name of its NumPy type, or of one of ml_dtypes."""

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def traced(self) -> jax.ShapeDtypeStruct:
        """Return what JAX traces in its place."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)


__all__ = ["JAX_OPTIONS", "ArraySpec", "jax", "jax_versions", "jnp", "lax"]
