"""An array namespace that writes MLIR, so that a kernel runs code that is defined once for all array libraries.

`workers.sampling.fixed_point` and `workers.sampling.noise` are written against the common part of numpy, jax.numpy and
mlx.core. `ArrayNamespace` is one more such namespace, as far as they use it: an array is a `Value`, a scalar or a
vector of `LANES`. Integers are unsigned.
"""

from workers.iree.kernels.ir.literal import Number
from workers.iree.kernels.ir.mlir_lines import MlirLines
from workers.iree.kernels.ir.mlir_types import Type
from workers.iree.kernels.ir.value import Value, constant


class ArrayNamespace:
    """`xp` for functions that take an array namespace; what they compute becomes lines of one kernel."""

    uint32 = int32 = "i32"
    float32 = "f32"

    def __init__(self, code: MlirLines) -> None:
        self._code = code

    def array(self, value: Number, dtype: str) -> Value:
        """Return a constant."""
        return constant(self._code, value, Type(dtype))

    def where(self, condition: Value, yes: Value | Number, no: Value | Number) -> Value:
        return condition.select(yes, no)

    def maximum(self, a: Value, b: Value | Number) -> Value:
        """Return the larger; `b` where one of them is NaN."""
        return (a > b).select(a, b)

    def minimum(self, a: Value, b: Value | Number) -> Value:
        """Return the smaller; `b` where one of them is NaN."""
        return (a < b).select(a, b)
