"""FP4 (E2M1) as integers: a code of four bits stands for a level, twice the value plus 12, which integer dot products
multiply by as by any other level.

https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf
"""

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.quantized_matrix import FP4_MIDDLE
from workers.iree.kernels.ir.value import Value

MAGNITUDES = (0, 1, 2, 3, 4, 6, 8, 12)
"""Twice the values of the codes without a sign."""
LEVELS = tuple(FP4_MIDDLE + sign * magnitude for sign in (1, -1) for magnitude in MAGNITUDES)
"""The levels of all codes."""
MAX_LEVEL = FP4_MIDDLE + MAGNITUDES[-1]
EVERY_BYTE = 0x01010101
_CODES = np.zeros(MAX_LEVEL + 1, np.uint8)
for _code, _magnitude in enumerate(MAGNITUDES):
    _CODES[FP4_MIDDLE - _magnitude], _CODES[FP4_MIDDLE + _magnitude] = 8 + _code, _code


def fp4_codes(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes of levels. Zero has the code without a sign."""
    codes: NDArray[np.uint8] = _CODES[levels]
    return codes


def fp4_levels(codes: Value, every: int = EVERY_BYTE) -> Value:
    """Return the levels of codes in the bytes of int32, or with `every` 1 in the lowest byte alone, whose others are 0.

    For CPUs without an instruction that looks up bytes (`ByteShuffle`). A code is a sign, two bits of an exponent and
    one of a mantissa. No sum or difference passes the end of a byte.
    """
    magnitude = codes & (7 * every)
    large = (codes >> 2) & every  # codes from 4 on, which are 4, 6, 8, 12: the code, plus its low bits, plus 2 for 7
    low = magnitude & (large * 3)
    magnitude = magnitude + low + ((low & (low >> 1) & every) << 1)
    signs = ((codes >> 3) & every) * 15
    return (magnitude ^ signs) + FP4_MIDDLE * every - signs
