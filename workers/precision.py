"""Number formats and instruction sets that a model can be loaded for, as the command line and a worker's specification
name them."""

from typing import Literal

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
"""Type of weights, and of the KV cache unless that is quantized; `auto` is the checkpoint's own."""
Quantize = Literal["none", "int8", "int4"]
"""Quantization applied while loading, to matrices that the checkpoint stores unquantized."""
KvDtype = Literal["auto", "int8"]
"""Type of the KV cache; `auto` is that of the model."""
CpuTarget = Literal["host", "avx2", "avx-vnni", "avx512", "avx512-vnni", "neon", "neon-dotprod", "neon-i8mm"]
"""Instructions that graphs use on a CPU, x86-64 or AArch64; `host` is all that this machine has."""
