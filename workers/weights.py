"""The tensors of a checkpoint in safetensors files: one or sharded, plain or quantized by MLX, read when asked for."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from workers.refused import LoadRefused

MAX_JSON_BYTES = 64 << 20
"""A shard index of a very large model is a few MiB; anything above this is not a model's description."""

QUANTIZED_BITS = (2, 4, 8)
"""Widths that divide a 32-bit word; MLX packs the others (3, 5, 6) across words."""

DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U32": np.dtype(np.uint32),
}
"""safetensors' names of the types that are read."""


class CheckpointError(LoadRefused):
    """A checkpoint cannot be used: the file, the field or tensor, and why. Raised before anything is computed."""

    def __init__(self, file: Path | str, field: str, problem: str) -> None:
        self.file = str(file)
        self.field = field
        self.problem = problem
        where = f"{self.file}: {field}" if field else self.file
        super().__init__(f"{where}: {problem}")


@dataclass(frozen=True, slots=True)
class Quantization:
    """MLX's affine quantization: a group of `group_size` inputs shares one scale and one bias."""

    group_size: int
    bits: int
    overrides: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(group_size, bits) of the modules that differ, by module name."""

    def of(self, module: str) -> tuple[int, int]:
        return self.overrides.get(module, (self.group_size, self.bits))


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file, or `CheckpointError`."""
    try:
        size = file.stat().st_size
        if size > MAX_JSON_BYTES:
            raise CheckpointError(file, "", f"{size} bytes is more than {MAX_JSON_BYTES}")
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(file, "", "there is no such file") from None
    except OSError as error:
        raise CheckpointError(file, "", f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(file, "", f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(file, "", "is not a JSON object")
    return value


def parse_quantization(file: Path, config: Mapping[str, Any]) -> Quantization | None:
    """The `quantization` object that MLX writes into config.json; every other scheme is refused by name."""
    plan = config.get("quantization") or config.get("quantization_config")
    if plan is None:
        return None
    if not isinstance(plan, dict):
        raise CheckpointError(file, "quantization", "is not an object")
    if "quant_method" in plan and "quantization" not in config:
        raise CheckpointError(file, "quantization_config.quant_method", f"{plan['quant_method']!r} is not supported")
    mode = plan.get("mode", "affine")
    if mode != "affine":
        raise CheckpointError(file, "quantization.mode", f"{mode!r} is not supported, only 'affine'")
    overrides = {
        name: _group_and_bits(file, f"quantization.{name}", value)
        for name, value in plan.items()
        if isinstance(value, dict)
    }
    group_size, bits = _group_and_bits(file, "quantization", plan)
    return Quantization(group_size, bits, overrides)


def _group_and_bits(file: Path, where: str, plan: Mapping[str, Any]) -> tuple[int, int]:
    group_size, bits = plan.get("group_size"), plan.get("bits")
    if bits not in QUANTIZED_BITS or not isinstance(bits, int):
        raise CheckpointError(file, f"{where}.bits", f"{bits!r} is not supported, only {QUANTIZED_BITS}")
    if not isinstance(group_size, int) or group_size <= 0 or group_size * bits % 32:
        raise CheckpointError(file, f"{where}.group_size", f"{group_size!r} is not a group of whole 32-bit words")
    return group_size, bits


def dequantize(
    packed: NDArray[np.uint32], scales: NDArray[Any], biases: NDArray[Any], group_size: int, bits: int
) -> NDArray[Any]:
    """MLX's affine format: `scale * q + bias`, `q` packed from the lowest bits of each word up.

    packed uint32 [out, in * bits / 32], scales and biases [out, in / group_size] -> [out, in] in the scales' type,
    computed in float32 and rounded once. Raises ValueError when the shapes do not fit each other.
    """
    out, words = packed.shape
    columns = words * 32 // bits
    if scales.shape != biases.shape or scales.shape != (out, columns // group_size) or columns % group_size:
        raise ValueError(f"scales {scales.shape} and biases {biases.shape} do not fit packed {packed.shape}")
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    q = (packed[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    groups = q.reshape(out, columns // group_size, group_size).astype(np.float32)
    groups *= scales.astype(np.float32)[:, :, None]
    groups += biases.astype(np.float32)[:, :, None]
    return groups.reshape(out, columns).astype(scales.dtype)


class Weights(Mapping[str, NDArray[Any]]):
    """Name -> array; each access reads the file again, so that a big model never lies in memory twice.

    An MLX-quantized tensor appears under its `.weight` name, dequantized; its scales and biases are hidden.
    """

    def __init__(self, directory: Path, quantization: Quantization | None) -> None:
        self._directory = directory
        self._quantization = quantization
        self._files: dict[str, Any] = {}
        self._where = self._locate()
        quantized = {name.removesuffix(".scales") for name in self._where if name.endswith(".scales")}
        if quantized and quantization is None:
            raise CheckpointError(directory / "config.json", "quantization", "is missing, yet tensors have `.scales`")
        self._quantized = frozenset(quantized)
        hidden = {f"{module}.{part}" for module in quantized for part in ("scales", "biases")}
        self._names = tuple(name for name in self._where if name not in hidden)

    def _locate(self) -> dict[str, Path]:
        index = self._directory / "model.safetensors.index.json"
        if not index.exists():
            file = self._directory / "model.safetensors"
            return dict.fromkeys(self._open(file).keys(), file)
        table = read_json(index).get("weight_map")
        if not isinstance(table, dict):
            raise CheckpointError(index, "weight_map", "is missing or not an object")
        where = {}
        for name, shard in table.items():
            # A shard is a file beside its index; a path that leads elsewhere is not one.
            if not isinstance(shard, str) or not shard or Path(shard).name != shard:
                raise CheckpointError(index, f"weight_map.{name}", f"{shard!r} is not a file name")
            where[name] = self._directory / shard
        return where

    def _open(self, file: Path) -> Any:
        if file.name not in self._files:
            if not file.is_file():
                raise CheckpointError(file, "", "there is no such file")
            try:
                self._files[file.name] = safe_open(str(file), framework="numpy")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(file, "", f"is not a safetensors file: {error}") from error
        return self._files[file.name]

    def _read(self, name: str) -> NDArray[Any]:
        file = self._where[name]
        handle = self._open(file)
        try:
            dtype = handle.get_slice(name).get_dtype()
            if dtype not in DTYPES:
                raise CheckpointError(file, name, f"type {dtype} is not supported")
            tensor: NDArray[Any] = handle.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(file, name, str(error)) from error
        return tensor.view(DTYPES[dtype])

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._where:
            raise KeyError(name)
        module = name.removesuffix(".weight")
        if module not in self._quantized or module == name:
            return self._read(name)
        assert self._quantization is not None  # checked when the names were read
        group_size, bits = self._quantization.of(module)
        try:
            parts = [self._read(f"{module}.{part}") for part in ("scales", "biases")]
            return dequantize(self._read(name), parts[0], parts[1], group_size, bits)
        except (ValueError, KeyError) as error:
            raise CheckpointError(self._where[name], name, f"bad quantized tensor: {error}") from error

    def take(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The tensor, or `CheckpointError` when it is missing or its shape is another."""
        if name not in self._where:
            raise CheckpointError(self._directory, name, "the tensor is missing")
        tensor = self[name]
        if tensor.shape != shape:
            raise CheckpointError(self._where[name], name, f"has the shape {tensor.shape}, config.json says {shape}")
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
