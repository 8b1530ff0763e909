"""Low-bit number codes: FP8 (E4M3), FP4 (E2M1) and the power-of-two scales of the OCP microscaling formats (E8M0).

https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""Values of the sixteen codes of FP4."""
E8M0_NAN = 255
"""The code of NaN."""
_EIGHTS = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def from_e4m3(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the values of FP8 codes (the type without infinities). Raises ValueError for codes of NaN."""
    if np.any((codes & np.uint8(0x7F)) == 0x7F):
        raise ValueError("has codes of FP8 that are NaN")
    values: NDArray[np.float32] = _EIGHTS[codes]
    return values


def from_e8m0(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return 2^(code - 127). Raises ValueError for the code of NaN."""
    if np.any(codes == E8M0_NAN):
        raise ValueError("has a scale that is NaN (E8M0 code 255)")
    return np.ldexp(np.float32(1), codes.astype(np.int32) - 127).astype(np.float32)


def nibbles(packed: NDArray[np.uint8], *, high_first: bool = False) -> NDArray[np.uint8]:
    """Unpack codes of four bits, the low half of a byte first unless `high_first`: [..., n] -> [..., 2 n]."""
    halves = (packed >> np.uint8(4), packed & np.uint8(15))
    pairs = np.stack(halves if high_first else halves[::-1], axis=-1)
    return pairs.reshape(*packed.shape[:-1], -1)


def check_finite(scales: NDArray[Any]) -> NDArray[np.float32]:
    """Return scales in float32. Raises ValueError for one that is no finite number."""
    values = scales.astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError("has a scale that is no finite number")
    return values
