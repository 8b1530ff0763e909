"""The arithmetic of each CPU and type."""

from workers.iree.kernels.ir.arithmetic import Bf16Dot, Bfdot, FloatFma, WidenedBf16, arithmetic_of


def test_arithmetic_by_cpu_and_type() -> None:
    assert arithmetic_of({"avx512f", "avx512bf16", "sse4a"}, "bfloat16") == Bf16Dot()
    assert arithmetic_of({"avx512f", "avx512bf16"}, "bfloat16") == WidenedBf16(16)
    assert arithmetic_of({"avx512f", "avx512bf16"}, "float32") == FloatFma("f32", 16)
    assert arithmetic_of({"avx512f", "sse4a"}, "bfloat16") == WidenedBf16(16)
    assert arithmetic_of({"avx2"}, "float16") == FloatFma("f16", 4)
    assert arithmetic_of(set(), "bfloat16") == WidenedBf16(4)
    assert arithmetic_of({"neon", "bf16"}, "bfloat16") == Bfdot()
    assert arithmetic_of({"neon", "bf16"}, "float16") == FloatFma("f16", 4)
    assert arithmetic_of({"neon", "dotprod"}, "bfloat16") == WidenedBf16(4)
