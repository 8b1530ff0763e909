"""Hidden states of prompts: the rows of graphs that leave them as operands, as the host reads them."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


def float_rows(operand: NDArray[Any], width: int, *, halves: bool) -> NDArray[np.float32]:
    """Return the first `width` values of each row of an operand: float32 [rows, width], a copy.

    Those of the kernels for CPUs are int32 words of one float32 value, or with `halves` of two bfloat16 values.
    """
    if operand.dtype == np.int32:
        operand = operand.view(ml_dtypes.bfloat16 if halves else np.float32)
    return np.array(operand[:, :width], np.float32)
