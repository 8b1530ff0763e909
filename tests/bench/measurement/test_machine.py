from pathlib import Path

from bench.measurement.machine import cpu_model

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC
flags\t\t: fpu avx2 avx512f avx512_bf16 avx512_vnni

processor\t: 1
"""


def test_the_cpu_is_named_with_its_vector_instructions(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    expected = "AMD EPYC, family 26 model 2 (avx2, avx512f, avx512_vnni, avx512_bf16)"
    assert cpu_model(tmp_path / "cpuinfo") == expected


def test_a_system_without_cpuinfo_has_a_name(tmp_path: Path) -> None:
    assert cpu_model(tmp_path / "none")
