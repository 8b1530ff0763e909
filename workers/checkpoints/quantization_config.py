"""Quantization in config.json, and the tensors that it describes: MLX, GPTQ and AWQ. `low_bits` has other methods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.low_bits.config import METHODS, parse_low_bits
from workers.checkpoints.low_bits.mlx_modes import MICROSCALED, MlxMode, from_microscaled, microscaled_format
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized, ScaleType, Zero, from_awq, from_gptq, from_mlx

Method = Literal["mlx", "gptq", "awq"]
BITS: Mapping[Method, tuple[int, ...]] = {"mlx": (2, 3, 4, 5, 6, 8), "gptq": (2, 4, 8), "awq": (4,)}
PARTS: Mapping[Method, tuple[str, ...]] = {
    "mlx": (".weight", ".scales", ".biases"),
    "gptq": (".qweight", ".scales", ".qzeros", ".g_idx"),
    "awq": (".qweight", ".scales", ".qzeros"),
}
"""Endings of the tensors that a quantized matrix is stored in, its integers first."""
NUMBERS = frozenset({".scales", ".biases"})
"""Endings of tensors with floating-point numbers."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """The quantization of a checkpoint: a group of inputs shares one scale and one zero or bias."""

    group_size: int
    """Inputs of a group; -1 is all."""
    bits: int
    overrides: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(group_size, bits) of modules that differ, by module name."""
    method: Method = "mlx"
    symmetric: bool = False
    """Every zero is the middle of the levels (GPTQ and AWQ)."""
    zero_offset: int = 0
    """Offset that was subtracted from the zeros before they were packed (GPTQ)."""
    mode: MlxMode = "affine"
    modes: Mapping[str, MlxMode] = field(default_factory=dict)
    """The modes of `overrides`."""

    def of(self, module: str) -> tuple[int, int]:
        return self.overrides.get(module, (self.group_size, self.bits))

    def mode_of(self, module: str) -> MlxMode:
        return self.modes.get(module, self.mode)

    @property
    def widths(self) -> str:
        """Name of the widths: `int4`, or `fp4+int8` where modules differ."""
        own = {(self.mode, self.bits), *((self.mode_of(name), bits) for name, (_, bits) in self.overrides.items())}
        return "+".join(sorted({f"int{bits}" if mode == "affine" else f"fp{bits}" for mode, bits in own}))

    @property
    def parts(self) -> tuple[str, ...]:
        return PARTS[self.method]

    @property
    def packed(self) -> str:
        """Ending of the tensors of packed integers; for MLX an ending that only quantized modules have."""
        return ".scales" if self.method == "mlx" else ".qweight"

    def format(self, module: str, packed: tuple[int, ...], scales: ScaleType) -> GroupFormat:
        """Format of a module whose `packed` tensor has this shape and whose scales have this type."""
        group, bits = self.of(module)
        if (mode := self.mode_of(module)) != "affine":
            return microscaled_format(mode, packed[-1] * group)
        zero: Zero = "bias" if self.method == "mlx" else "middle" if self.symmetric else "level"
        if group == -1:
            group = packed[0] * (32 // bits if self.method == "gptq" else 1)
        return GroupFormat(bits, group, zero, scales)

    def unpack(self, parts: Mapping[str, NDArray[Any]], format: GroupFormat) -> Quantized:
        """Make a matrix of the tensors in `parts`, by their endings.

        Raises ValueError for tensors that do not fit together and KeyError for a missing one.
        """
        if ".biases" not in parts and self.method == "mlx" and format.zero == "middle":
            return from_microscaled(parts[".weight"], parts[".scales"], format)
        if self.method == "mlx":
            return from_mlx(parts[".weight"], parts[".scales"], parts[".biases"], format)
        words, scales, zeros = parts[".qweight"], parts[".scales"], parts[".qzeros"]
        if self.method == "awq":
            return from_awq(words, scales, zeros, format)
        matrix = from_gptq(words, scales, zeros, format, zero_offset=self.zero_offset)
        order = parts.get(".g_idx")
        if order is not None and not np.array_equal(order, np.arange(matrix.levels.shape[1]) // format.group):
            raise ValueError("its inputs are reordered (g_idx, `desc_act`), which is not supported")
        return matrix


def parse_quantization(file: Path, config: Mapping[str, Any]) -> Quantization | None:
    """Read the `quantization` of MLX or the `quantization_config` of GPTQ and AWQ; None where there is neither.

    It is None for the methods of `low_bits`, too, whose fields are only checked: such matrices are converted when they
    are read. Raises `CheckpointError` with the name of any other scheme.
    """
    plan = config.get("quantization") or config.get("quantization_config")
    if plan is None:
        return None
    where = "quantization" if config.get("quantization") else "quantization_config"
    if not isinstance(plan, dict):
        raise CheckpointError(file, where, "is not an object")
    if "quant_method" not in plan or where == "quantization":
        return _mlx(file, where, plan)
    method = plan["quant_method"]
    if method == "gptq":
        return _gptq(file, where, plan)
    if method == "awq":
        return _awq(file, where, plan)
    if parse_low_bits(file, config) is not None:
        return None
    known = ", ".join(map(repr, sorted({*METHODS, "awq", "gptq"})))
    raise CheckpointError(file, f"{where}.quant_method", f"{method!r} is not supported, only {known}")


def _mlx(file: Path, where: str, plan: Mapping[str, Any]) -> Quantization:
    modules = {name: value for name, value in plan.items() if isinstance(value, dict)}
    mode, group, bits = _mlx_module(file, where, plan)
    read = {name: _mlx_module(file, f"{where}.{name}", own) for name, own in modules.items()}
    sizes, modes = ({name: each[1:] for name, each in read.items()}, {name: each[0] for name, each in read.items()})
    return Quantization(group, bits, sizes, mode=mode, modes=modes)


def _mlx_module(file: Path, where: str, plan: Mapping[str, Any]) -> tuple[MlxMode, int, int]:
    """Read (mode, group_size, bits) of the model or of one module; the mode is affine where none is stated."""
    mode = plan.get("mode", "affine")
    if mode == "affine":
        return "affine", *_group_and_bits(file, where, plan, "mlx")
    if mode not in MICROSCALED:
        known = ", ".join(map(repr, ("affine", *MICROSCALED)))
        raise CheckpointError(file, f"{where}.mode", f"{mode!r} is not supported, only {known}")
    for name, expected in zip(("group_size", "bits"), MICROSCALED[mode], strict=True):
        if plan.get(name, expected) != expected or type(plan.get(name, expected)) is not int:
            raise CheckpointError(file, f"{where}.{name}", f"{plan[name]!r} is not that of {mode}, {expected}")
    return mode, *MICROSCALED[mode]


def _gptq(file: Path, where: str, plan: Mapping[str, Any]) -> Quantization:
    layout = plan.get("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise CheckpointError(file, f"{where}.checkpoint_format", f"{layout!r} is not supported, only 'gptq(_v2)'")
    group, bits = _group_and_bits(file, where, plan, "gptq")
    offset = 1 if layout == "gptq" else 0
    return Quantization(group, bits, method="gptq", symmetric=_flag(file, where, plan, "sym"), zero_offset=offset)


def _awq(file: Path, where: str, plan: Mapping[str, Any]) -> Quantization:
    version = str(plan.get("version", "gemm")).lower()
    if version != "gemm":
        raise CheckpointError(file, f"{where}.version", f"{version!r} is not supported, only 'gemm'")
    group, bits = _group_and_bits(file, where, plan, "awq")
    return Quantization(group, bits, method="awq", symmetric=not _flag(file, where, plan, "zero_point"))


def _flag(file: Path, where: str, plan: Mapping[str, Any], name: str) -> bool:
    value = plan.get(name, True)
    if not isinstance(value, bool):
        raise CheckpointError(file, f"{where}.{name}", f"{value!r} is neither true nor false")
    return value


def _group_and_bits(file: Path, where: str, plan: Mapping[str, Any], method: Method) -> tuple[int, int]:
    group_size, bits = plan.get("group_size"), plan.get("bits")
    if bits not in BITS[method] or not isinstance(bits, int) or isinstance(bits, bool):
        raise CheckpointError(file, f"{where}.bits", f"{bits!r} is not supported, only {BITS[method]}")
    if method != "mlx" and group_size == -1:
        return -1, bits
    if not isinstance(group_size, int) or group_size <= 0 or group_size * bits % 32:
        raise CheckpointError(file, f"{where}.group_size", f"{group_size!r} is not a group of whole 32-bit words")
    return group_size, bits
