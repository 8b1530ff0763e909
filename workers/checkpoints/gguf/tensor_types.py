"""The types of tensors in GGUF files: their sizes, and how a matrix of each type is served."""

from collections.abc import Mapping
from dataclasses import dataclass

from workers.checkpoints.low_bits.fp4_layouts import fp4_format
from workers.checkpoints.quantized_matrix import GroupFormat

GROUP = 32
"""Weights of a row that share a scale, in all matrices that are kept quantized."""
EVEN = GroupFormat(8, GROUP, "bias", "float32")
"""The format that holds every other one here, and to which what has no exact form is quantized anew."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """One type of ggml."""

    name: str
    block: int
    """Weights of a block."""
    size: int
    """Bytes of a block."""
    format: GroupFormat | None = None
    """The format in which a matrix of this type is served; None for plain numbers."""
    exact: bool = True
    """That format has the same weights."""


_HALF_4, _HALF_8 = GroupFormat(4, GROUP, "middle", "float16"), GroupFormat(8, GROUP, "middle", "float16")
TYPES: Mapping[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    30: TensorType("BF16", 1, 2),
    8: TensorType("Q8_0", 32, 34, _HALF_8),
    2: TensorType("Q4_0", 32, 18, _HALF_4),
    3: TensorType("Q4_1", 32, 20, GroupFormat(4, GROUP, "bias", "float16")),
    6: TensorType("Q5_0", 32, 22, GroupFormat(5, GROUP, "middle", "float16")),
    7: TensorType("Q5_1", 32, 24, GroupFormat(5, GROUP, "bias", "float16")),
    12: TensorType("Q4_K", 256, 144, GroupFormat(4, GROUP, "bias", "float32")),
    13: TensorType("Q5_K", 256, 176, GroupFormat(5, GROUP, "bias", "float32")),
    10: TensorType("Q2_K", 256, 84, EVEN, exact=False),
    11: TensorType("Q3_K", 256, 110, EVEN, exact=False),
    14: TensorType("Q6_K", 256, 210, EVEN, exact=False),
    16: TensorType("IQ2_XXS", 256, 66, EVEN, exact=False),
    17: TensorType("IQ2_XS", 256, 74, EVEN, exact=False),
    18: TensorType("IQ3_XXS", 256, 98, EVEN, exact=False),
    19: TensorType("IQ1_S", 256, 50, EVEN, exact=False),
    20: TensorType("IQ4_NL", 32, 18, EVEN, exact=False),
    21: TensorType("IQ3_S", 256, 110, EVEN, exact=False),
    22: TensorType("IQ2_S", 256, 82, EVEN, exact=False),
    23: TensorType("IQ4_XS", 256, 136, EVEN, exact=False),
    29: TensorType("IQ1_M", 256, 56, EVEN, exact=False),
    34: TensorType("TQ1_0", 256, 54, EVEN, exact=False),
    35: TensorType("TQ2_0", 256, 66, EVEN, exact=False),
    39: TensorType("MXFP4", 32, 17, fp4_format(GROUP, "bfloat16")),
}
"""The types by ggml's numbers. Q2_K, Q3_K and Q6_K have a scale for 16 weights, others have levels that are not evenly
spaced or one scale for 256: they have no form in groups of 32 levels."""
