"""Number formats and instruction sets that a model can be loaded for, as the command line and a worker's specification
name them."""

from typing import Literal

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
"""Type of weights, and of the KV cache unless that is quantized; `auto` is the checkpoint's own."""
WeightDtype = Literal["float32", "float16", "bfloat16"]
"""Type of the weights of a loaded model."""
Quantize = Literal["none", "int8", "int4"]
"""Quantization applied while loading, to matrices that the checkpoint stores unquantized."""
KvDtype = Literal["auto", "int8", "int4"]
"""Type of the KV cache; `auto` is that of the model."""
CpuTarget = Literal["host", "avx2", "avx-vnni", "avx512", "avx512-vnni", "neon", "neon-dotprod", "neon-i8mm"]
"""Instructions that graphs use on a CPU, x86-64 or AArch64; `host` is all that this machine has."""

SCALE_BYTES = 4
"""Bytes of the scale of a row of a quantized KV cache, the keys or values of one token and KV head: float32."""
MIN_TOP = 1e-30
"""The minimum that a row's largest magnitude counts as: a row of zeros has a scale, too."""


WindowCache = Literal["full", "ring"]
"""The rows of a sequence that layers with an attention window keep: all, or a ring of the last ones."""


def level_bits(kv_dtype: KvDtype) -> int:
    """Return the bits of a level of the KV cache; 0 where it is not quantized."""
    return {"auto": 0, "int8": 8, "int4": 4}[kv_dtype]


def max_level(bits: int) -> int:
    """Return the level of a row's largest magnitude."""
    return (1 << bits - 1) - 1


def head_row_bytes(lanes: int, item_bytes: int, kv_dtype: KvDtype) -> int:
    """Return the bytes of a row of `lanes` numbers, of `item_bytes` each where the cache has the model's type."""
    bits = level_bits(kv_dtype)
    return lanes * bits // 8 + SCALE_BYTES if bits else lanes * item_bytes
