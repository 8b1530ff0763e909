"""The tensors of a checkpoint in safetensors files: one or sharded, plain or quantized, read when asked for."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from workers.description import CheckpointError, read_json
from workers.quantization import GroupFormat, Quantized, ScaleType
from workers.scheme import Quantization

DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
}
"""safetensors' names of the types that are read."""
SCALES: Mapping[str, ScaleType] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Weights(Mapping[str, NDArray[Any]]):
    """Name -> array; each access reads the file again, so that a big model never lies in memory twice.

    A quantized tensor appears under its `.weight` name, dequantized to its scales' type; the tensors that it is kept
    in are hidden.
    """

    def __init__(self, directory: Path, quantization: Quantization | None) -> None:
        self.directory = directory
        self._quantization = quantization
        self._files: dict[str, Any] = {}
        self._where = self._locate()
        packed = quantization.packed if quantization else ".scales"
        modules = {name.removesuffix(packed) for name in self._where if name.endswith(packed)}
        if modules and quantization is None:
            raise CheckpointError(directory / "config.json", "quantization", "is missing, yet tensors have `.scales`")
        self._quantized = frozenset(modules)
        parts = quantization.parts if quantization else ()
        hidden = {module + part for module in modules for part in parts}
        whole = [f"{module}.weight" for module in modules]
        self._names = tuple(dict.fromkeys([*(name for name in self._where if name not in hidden), *sorted(whole)]))

    def _locate(self) -> dict[str, Path]:
        index = self.directory / "model.safetensors.index.json"
        if not index.exists():
            file = self.directory / "model.safetensors"
            return dict.fromkeys(self._open(file).keys(), file)
        table = read_json(index).get("weight_map")
        if not isinstance(table, dict):
            raise CheckpointError(index, "weight_map", "is missing or not an object")
        where = {}
        for name, shard in table.items():
            # A shard is a file beside its index; a path that leads elsewhere is not one.
            if not isinstance(shard, str) or not shard or Path(shard).name != shard:
                raise CheckpointError(index, f"weight_map.{name}", f"{shard!r} is not a file name")
            where[name] = self.directory / shard
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

    def _header(self, name: str) -> tuple[str, tuple[int, ...]]:
        """safetensors' name of a tensor's type, and its shape."""
        if name not in self._where:
            raise CheckpointError(self.directory, name, "the tensor is missing")
        try:
            part = self._open(self._where[name]).get_slice(name)
            return part.get_dtype(), tuple(part.get_shape())
        except SafetensorError as error:
            raise CheckpointError(self._where[name], name, str(error)) from error

    def _read(self, name: str) -> NDArray[Any]:
        dtype, _ = self._header(name)
        if dtype not in DTYPES:
            raise CheckpointError(self._where[name], name, f"type {dtype} is not supported")
        try:
            tensor: NDArray[Any] = self._open(self._where[name]).get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(self._where[name], name, str(error)) from error
        return tensor.view(DTYPES[dtype])

    def __getitem__(self, name: str) -> NDArray[Any]:
        module = self._module(name)
        if module is None:
            if name not in self._where:
                raise KeyError(name)
            return self._read(name)
        matrix = self._matrix(module)
        return matrix.dequantize().astype(matrix.scales.dtype)

    def format(self, name: str) -> GroupFormat | None:
        """How a tensor is quantized, from its header; None for one that is not, or is not there."""
        module = self._module(name)
        if module is None:
            return None
        assert self._quantization is not None  # checked when the names were read
        kind = self._header(f"{module}.scales")[0]
        if kind not in SCALES:
            raise CheckpointError(self._where[f"{module}.scales"], f"{module}.scales", f"type {kind} is not supported")
        words = self._header(module + self._quantization.packed)[1]
        return self._quantization.format(module, words, SCALES[kind])

    def take(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The tensor, or `CheckpointError` when it is missing or its shape is another."""
        if name not in self._names:
            raise CheckpointError(self.directory, name, "the tensor is missing")
        tensor = self[name]
        self._check_shape(name, tensor.shape, shape)
        return tensor

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> Quantized:
        """A tensor that has a `format`, as it is; `CheckpointError` when its shape is another."""
        module = self._module(name)
        if module is None:
            raise KeyError(name)
        matrix = self._matrix(module)
        self._check_shape(name, matrix.levels.shape, shape)
        return matrix

    def _check_shape(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if shape != expected:
            file = self._where.get(name, self.directory)
            raise CheckpointError(file, name, f"has the shape {shape}, config.json says {expected}")

    def _module(self, name: str) -> str | None:
        module = name.removesuffix(".weight")
        return module if module != name and module in self._quantized else None

    def _matrix(self, module: str) -> Quantized:
        plan, format = self._quantization, self.format(f"{module}.weight")
        assert plan is not None  # checked when the names were read
        assert format is not None  # the module is one of the quantized ones
        parts = {part: self._read(module + part) for part in plan.parts if module + part in self._where}
        try:
            return plan.unpack(parts, format)
        except (ValueError, KeyError) as error:
            file = self._where[module + plan.packed]
            raise CheckpointError(file, f"{module}.weight", f"bad quantized tensor: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
