"""The instructions that kernels become for each target, as the compiler writes them: nothing is run."""

import re
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from tests.workers.iree.kernels.ir.test_fused_kernel import reversing
from tests.workers.iree.kernels.running import module_of
from workers.checkpoints.quantized_matrix import GroupFormat
from workers.iree.build.compiler import Compiler
from workers.iree.device.cpu import Cpu
from workers.iree.device.device import Device
from workers.iree.kernels.ir.arithmetic import arithmetic_of
from workers.iree.kernels.matmul.activation_quantization import ActivationQuantization
from workers.iree.kernels.matmul.integer_dots import choose_integer_dots
from workers.iree.kernels.matmul.linear import glu_linear
from workers.iree.kernels.matmul.packing import Packing
from workers.iree.kernels.matmul.quantized_linear import quantized_linear
from workers.iree.kernels.matmul.quantized_matmul import QuantizedMatmul
from workers.precision import CpuTarget

ROWS, INPUTS, TILES = 5, 64, 2
FORMATS = {8: GroupFormat(8, 32, "bias", "float16"), 4: GroupFormat(4, 64, "bias", "float16")}
DOTPROD, I8MM, BF16 = {"sdot", "udot"}, {"usdot", "sudot", "smmla", "ummla", "usmmla"}, {"bfdot", "bfmmla", "bfcvtn"}
SVE = re.compile(r"\bz\d+\.[bhsd]\b")
PLATFORM_REGISTER = re.compile(r"\b[xw]18\b")
"""The register that macOS keeps to itself: it loads the same modules as Linux."""


def instructions(text: str, target: CpuTarget, folder: Path) -> set[str]:
    """Compile a kernel and return the names of the instructions of its module."""
    device = Device("local-sync", 1, target, compile_only=True)
    flags = (*device.compile_flags(), f"--iree-hal-dump-executable-intermediates-to={folder}")
    device.close()
    Compiler(folder, flags, device.compile_target()).compile(module_of(text))
    (assembly,) = (file.read_text() for file in folder.glob("*.s"))
    assert not SVE.search(assembly)
    assert not PLATFORM_REGISTER.search(assembly)
    return {match[1] for match in re.finditer(r"^\t([a-z]\w*)\b", assembly, re.MULTILINE)}


def check(found: AbstractSet[str], wanted: AbstractSet[str], unwanted: AbstractSet[str]) -> None:
    assert wanted <= found
    assert not found & unwanted


@pytest.mark.parametrize(
    ("target", "bits", "wanted", "unwanted"),
    [
        ("neon", 8, {"smull", "addp", "sadalp"}, DOTPROD | I8MM),
        ("neon", 4, {"smlal", "saddlp"}, DOTPROD | I8MM),
        ("neon-dotprod", 8, {"sdot"}, I8MM),
        ("neon-dotprod", 4, {"sdot"}, I8MM),
        ("neon-i8mm", 8, {"usdot", "usmmla"}, {"sdot"}),
        ("neon-i8mm", 4, {"usdot", "usmmla"}, {"sdot"}),
    ],
)
def test_quantized_weights(tmp_path: Path, target: CpuTarget, bits: int, wanted: set[str], unwanted: set[str]) -> None:
    """With blocks of two rows and more, and of a row alone."""
    features, packing = Cpu.named(target).features, Packing(FORMATS[bits])
    arithmetic, dots = arithmetic_of(features, "bfloat16"), choose_integer_dots(features)
    activations = ActivationQuantization.of(ROWS, INPUTS, packing, arithmetic, 1, dots)
    text = quantized_linear("quantized", QuantizedMatmul(activations, TILES * 16, packing, dots, 1))
    check(instructions(text, target, tmp_path), wanted, unwanted)


@pytest.mark.parametrize(
    ("target", "wanted", "unwanted"),
    [("neon", {"fmla"}, BF16), ("neon-dotprod", {"fmla"}, BF16), ("neon-i8mm", {"bfdot"}, {"bfmmla"})],
)
def test_bfloat16_weights(tmp_path: Path, target: CpuTarget, wanted: set[str], unwanted: set[str]) -> None:
    arithmetic = arithmetic_of(Cpu.named(target).features, "bfloat16")
    text = glu_linear("glu", ROWS, TILES, INPUTS, arithmetic, "silu")
    check(instructions(text, target, tmp_path), wanted, unwanted)


@pytest.mark.parametrize(
    ("target", "wanted", "unwanted"), [("neon", {"ldaxr", "stlxr"}, {"ldaddal"}), ("neon-dotprod", {"ldaddal"}, set())]
)
def test_barriers(tmp_path: Path, target: CpuTarget, wanted: set[str], unwanted: set[str]) -> None:
    """Counters are acquired and released, and a core that waits tells so."""
    text = reversing("reversing", Cpu.named(target).pause)
    check(instructions(text, target, tmp_path), wanted | {"isb"}, unwanted)
