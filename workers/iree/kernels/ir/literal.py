"""Numbers as MLIR writes them."""

import math
import struct

from workers.iree.kernels.ir.mlir_types import BITS, Type

Number = int | float


def literal(value: Number, element: str) -> str:
    """Return a number as MLIR writes it.

    Raises `TypeError` for a fraction in an integer type, and `ValueError` for an integer that neither the signed nor
    the unsigned numbers of the type have.
    """
    if not Type(element).is_float:
        if value != int(value):
            raise TypeError(f"{value} is not an {element}")
        if not -(1 << BITS[element] - 1) <= value < 1 << BITS[element]:
            raise ValueError(f"{value} needs more than the {BITS[element]} bits of {element}")
        return str(int(value))
    if math.isinf(value) or math.isnan(value):
        if element != "f32":
            raise TypeError(f"{value} has no literal in {element}")
        return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"
    return f"{value:.17e}"
