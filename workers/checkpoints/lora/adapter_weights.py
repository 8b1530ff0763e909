"""The tensors of a LoRA adapter: two small matrices for each module that it changes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.lora.adapter_config import read_adapter_config
from workers.checkpoints.weight_files import WeightFiles
from workers.checkpoints.weights import FLOATS

FLOAT32_MAX = float(np.finfo(np.float32).max)
_PEFT = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)\.weight")
_MLX = re.compile(r"(.+)\.lora_(a|b)")
_INSIDE = {"model.language_model.": "model.", "language_model.": ""}
"""Prefixes of the modules of a language model within a multimodal one, and those that it has alone."""


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The matrices of an adapter for one module: it adds B (A x), where B has the scale in it."""

    a: NDArray[np.float32]
    """[rank, inputs]."""
    b: NDArray[np.float32]
    """[outputs, rank]."""


@dataclass(frozen=True, slots=True)
class PairHeader:
    """The pair of one module as the header of the file describes it."""

    rank: int
    inputs: int
    outputs: int
    a: str
    b: str
    """The names of the tensors."""


class AdapterWeights:
    """One adapter, read on access. Raises `CheckpointError` that names the file and the field or tensor."""

    def __init__(self, name: str, path: Path, max_rank: int, largest: float = FLOAT32_MAX) -> None:
        """`name` is what requests call it. Its ranks may be up to `max_rank`, and its values up to `largest`, which the
        type has in which they are stored: an infinite one of an adapter makes the sums of all others NaN."""
        self.name = name
        self._largest = largest
        self.config = read_adapter_config(path, max_rank)
        self._file = WeightFiles(path).open(self.config.file)
        self.pairs = self._headers()
        """By the name of the module in the language model alone."""

    def pair(self, module: str) -> LoraPair:
        """Read the matrices of a module, which must be finite, also with the scale and in the type of the model."""
        header, scale = self.pairs[module], self.config.scale_of(module)
        a, b = (self._read(name) for name in (header.a, header.b))
        with np.errstate(over="ignore", invalid="ignore"):
            b = b * np.float32(scale)
        for name, values, times in ((header.a, a, ""), (header.b, b, f", times the scale {scale:g},")):
            if not (np.abs(values) <= self._largest).all():
                raise self.error(name, f"has values{times} above {self._largest:g}, the largest of the model's type")
        if self.config.layout == "mlx":
            a, b = a.T, b.T
        return LoraPair(np.ascontiguousarray(a), np.ascontiguousarray(b))

    def error(self, tensor: str, problem: str) -> CheckpointError:
        """Return an error about a tensor of the file."""
        return CheckpointError(self.config.file, tensor, problem)

    def _read(self, name: str) -> NDArray[np.float32]:
        try:
            values: NDArray[np.float32] = self._file.get_tensor(name).astype(np.float32)
        except SafetensorError as error:
            raise self.error(name, str(error)) from error
        if not np.isfinite(values).all():
            raise self.error(name, "has values that are not finite")
        return values

    def _headers(self) -> Mapping[str, PairHeader]:
        pattern = _PEFT if self.config.layout == "peft" else _MLX
        found: dict[str, dict[str, str]] = {}
        for name in sorted(self._file.keys()):
            if (match := pattern.fullmatch(name)) is None:
                problem = "is neither of the matrices of a linear module, which alone are supported"
                raise self.error(name, problem)
            module = match.group(1)
            prefix = next((prefix for prefix in _INSIDE if module.startswith(prefix)), "")
            inside = _INSIDE.get(prefix, "") + module.removeprefix(prefix)
            parts = found.setdefault(inside, {})
            if (part := match.group(2).lower()) in parts:
                raise self.error(name, f"is there as {parts[part]}, too")
            parts[part] = name
        if not found:
            raise self.error("", "has no tensors")
        return {module: self._header(module, parts) for module, parts in found.items()}

    def _header(self, module: str, parts: Mapping[str, str]) -> PairHeader:
        for part in "ab":
            if part not in parts:
                (there,) = parts.values()
                raise self.error(there, "has no counterpart: the other matrix of the module is missing")
        first, second = (self._shape(parts[part]) for part in "ab")
        if self.config.layout == "mlx":
            first, second = first[::-1], second[::-1]
        rank = self.config.rank_of(module)
        for name, found in ((parts["a"], first[0]), (parts["b"], second[1])):
            if found != rank:
                raise self.error(name, f"has the rank {found}, adapter_config.json says {rank}")
        return PairHeader(rank, first[1], second[0], parts["a"], parts["b"])

    def _shape(self, name: str) -> tuple[int, ...]:
        part: Any = self._file.get_slice(name)
        shape = tuple(part.get_shape())
        if (kind := part.get_dtype()) not in FLOATS:
            raise self.error(name, f"type {kind} is not supported, only {' or '.join(sorted(FLOATS))}")
        if len(shape) != 2 or not all(shape):
            raise self.error(name, f"has the shape {shape}, not that of a matrix")
        return shape
