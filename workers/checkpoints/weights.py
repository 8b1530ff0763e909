"""The tensors of a checkpoint, read on access; in safetensors files, one or sharded, plain or quantized."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from workers.checkpoints.architectures.wrapper import Wrapper, name_inside
from workers.checkpoints.expert_stacks import MAX_EXPERTS, ExpertMatrix, StackLayout, stack_rank, unstacked
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.quantization_config import NUMBERS, Quantization
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized, ScaleType
from workers.checkpoints.weight_files import WeightFiles

FLOATS = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
"""Types of weights by safetensors' names."""
WORDS = {"U32": np.dtype(np.uint32), "I32": np.dtype(np.int32)}
"""Types that hold the packed integers of quantized matrices, by safetensors' names."""
MLX_WORDS = {"U32": WORDS["U32"]}
"""The type of packed integers that MLX writes and computes with."""
BYTES = {"U8": np.dtype(np.uint8)}
"""The type of scales in FP8."""
SCALES: Mapping[str, ScaleType] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types of scales by safetensors' names."""


@dataclass(frozen=True, slots=True)
class _StoredMatrix:
    """The module in which a matrix is stored that has no tensor under its own name."""

    module: str
    tensor: str
    """The tensor of the module."""
    place: ExpertMatrix | None = None
    """The place in a stack of experts."""


class Weights(Mapping[str, NDArray[Any]]):
    """A mapping of names to arrays. Each access reads the file, so that a large model is never in memory twice.

    A quantized tensor appears under its `.weight` name, dequantized, and stacked experts one by one under their own
    names; the tensors that store them are hidden.
    """

    files: Sequence[Path]
    """The files with the tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The path of the checkpoint."""

    @abstractmethod
    def format(self, name: str) -> GroupFormat | None:
        """The format of a quantized tensor, from its header; None for one that is plain or missing."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, from its header; of a quantized one the shape of its integers as they are stored."""

    @abstractmethod
    def check_types(self, unread: Callable[[str], bool] = lambda name: False) -> None:
        """Refuse tensors whose type is not that of their values, from the files' headers, unless they are not read.
        Raises `CheckpointError`."""

    @abstractmethod
    def adds_nothing(self, name: str) -> bool:
        """Return True if a tensor is a bias of zeros of a quantized matrix: AutoGPTQ writes one for each matrix."""

    @abstractmethod
    def take_quantized(self, name: str, shape: tuple[int, ...]) -> Quantized:
        """Read a tensor that has a `format`, without dequantizing it. Raises `CheckpointError` for another shape."""

    def mlx_bits(self, name: str) -> float | None:
        """Return the bits of a weight, scales included, of a matrix in FP4 or FP8 as MLX computes with it; None where
        MLX has the matrix in its `format`."""
        format = self.format(name)
        return format.bits + 8 / format.group if format is not None and format.e2m1 else None

    def take(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Read a tensor. Raises `CheckpointError` when it is missing or has another shape."""
        if name not in self:
            raise CheckpointError(self.path, name, "the tensor is missing")
        tensor = self[name]
        self._check_shape(name, tensor.shape, shape)
        return tensor

    def _check_shape(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if shape != expected:
            raise CheckpointError(self._file_of(name), name, f"has the shape {shape}, config.json says {expected}")

    def _file_of(self, name: str) -> Path:
        """The file to name in an error about a tensor."""
        return self.path


class SafetensorsWeights(Weights):
    """The tensors of a directory in Hugging Face layout; quantized ones are dequantized to the type of their scales."""

    def __init__(
        self,
        directory: Path,
        quantization: Quantization | None,
        wrapper: Wrapper | None = None,
        stacks: StackLayout = "halves",
    ) -> None:
        """With a `wrapper`, the tensors are those of its language model, under the names that they have there. `stacks`
        is the layout of stacked experts."""
        super().__init__(directory)
        self.files = sorted(directory.glob("*.safetensors"))
        self._wrapper = wrapper
        self._quantization = quantization
        self.stacks = stacks
        """The layout of stacked experts."""
        self._stored: dict[str, str] = {}
        """The names in the files, where they differ."""
        self._files = WeightFiles(directory)
        self._where = self._locate()
        packed = quantization.packed if quantization else ".scales"
        modules = {name.removesuffix(packed) for name in self._where if name.endswith(packed)}
        if modules and quantization is None:
            raise CheckpointError(directory / "config.json", "quantization", "is missing, yet tensors have `.scales`")
        self._quantized = frozenset(modules)
        self._stored_matrices = dict(self._find_stored_matrices())
        parts = quantization.parts if quantization else ()
        hidden = {module + part for module in modules for part in parts}
        hidden |= {stored_in.tensor for stored_in in self._stored_matrices.values()}
        visible = [name for name in self._where if name not in hidden]
        self._names = dict.fromkeys([*visible, *sorted(self._stored_matrices)])

    def _find_stored_matrices(self) -> Iterator[tuple[str, _StoredMatrix]]:
        """List the names of quantized and of stacked matrices."""
        for tensor in dict.fromkeys([*self._where, *(f"{module}.weight" for module in self._quantized)]):
            module = tensor.removesuffix(".weight")
            rank = stack_rank(tensor, self.stacks)
            if rank is not None and len(shape := self._header(tensor)[1]) == rank:
                if shape[0] > MAX_EXPERTS:
                    problem = f"stacks {shape[0]} experts, more than {MAX_EXPERTS}"
                    raise CheckpointError(self._where[tensor], tensor, problem)
                for name, place in unstacked(tensor, shape[0], self.stacks):
                    yield name, _StoredMatrix(module, tensor, place)
            elif module in self._quantized and tensor.endswith(".weight"):
                yield tensor, _StoredMatrix(module, tensor)

    def _locate(self) -> dict[str, Path]:
        """Find the file of each tensor. Raises `CheckpointError` for a tensor of an unknown part or a duplicate."""
        files = self._files.locate()
        if self._wrapper is None:
            return files
        where: dict[str, Path] = {}
        for stored, file in files.items():
            name = name_inside(stored, self._wrapper.inside)
            if name is None and stored.startswith(self._wrapper.around):
                continue
            if name is None:
                places = ", ".join(self._wrapper.inside)
                problem = f"the tensor is neither of the language model ({places}) nor of a part that is left out"
                raise CheckpointError(file, stored, problem)
            if name in where:
                raise CheckpointError(file, stored, f"is there as {self._stored[name]}, too")
            where[name], self._stored[name] = file, stored
        return where

    def _header(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Read safetensors' name of a tensor's type, and its shape."""
        if name not in self._where:
            raise CheckpointError(self.path, name, "the tensor is missing")
        try:
            part = self._files.open(self._where[name]).get_slice(self._stored.get(name, name))
            return part.get_dtype(), tuple(part.get_shape())
        except SafetensorError as error:
            raise CheckpointError(self._where[name], name, str(error)) from error

    def _check_type(self, name: str, types: Mapping[str, np.dtype[Any]]) -> str:
        """Read safetensors' name of a tensor's type. Raises `CheckpointError` unless it is one of `types`."""
        dtype, _ = self._header(name)
        if dtype not in types:
            raise CheckpointError(
                self._where[name], name, f"type {dtype} is not supported, only {' or '.join(sorted(types))}"
            )
        return dtype

    def _read(
        self, name: str, place: ExpertMatrix | None = None, types: Mapping[str, np.dtype[Any]] = FLOATS
    ) -> NDArray[Any]:
        """Read a tensor that is stored under this name, or one expert's part of it."""
        dtype = self._check_type(name, types)
        file, stored = self._files.open(self._where[name]), self._stored.get(name, name)
        try:
            if place is None:
                tensor: NDArray[Any] = file.get_tensor(stored)
            else:
                part = file.get_slice(stored)
                tensor = place.read(part)
        except SafetensorError as error:
            raise CheckpointError(self._where[name], name, str(error)) from error
        return np.ascontiguousarray(tensor).view(types[dtype])

    def __getitem__(self, name: str) -> NDArray[Any]:
        stored_in = self._stored_matrices.get(name)
        if stored_in is None:
            if name not in self._names:
                raise KeyError(name)
            return self._read(name)
        if stored_in.module not in self._quantized:
            return self._read(stored_in.tensor, stored_in.place)
        matrix = self._matrix(name)
        return matrix.dequantize().astype(matrix.scales.dtype)

    def format(self, name: str) -> GroupFormat | None:
        stored_in = self._stored_matrices.get(name)
        if stored_in is None or stored_in.module not in self._quantized:
            return None
        module = stored_in.module
        assert self._quantization is not None  # checked when the names were read
        kind = self._check_type(f"{module}.scales", self._types(module, ".scales"))
        words = self._header(module + self._quantization.packed)[1]
        return self._quantization.format(
            module, words if stored_in.place is None else words[1:], SCALES.get(kind, "float32")
        )

    def mlx_bits(self, name: str) -> float | None:
        stored_in, plan = self._stored_matrices.get(name), self._quantization
        if plan is None or stored_in is None or stored_in.module not in self._quantized:
            return None
        group, bits = plan.of(stored_in.module)
        return None if plan.mode_of(stored_in.module) == "affine" else bits + 8 / group

    def check_types(self, unread: Callable[[str], bool] = lambda name: False) -> None:
        """Refuse tensors whose type is not that of their values, from the files' headers.

        These are floating-point numbers of a supported type, and packed integers for the levels of a quantized matrix.
        A backend that read others would take their bytes for numbers. Tensors that are `unread` may have any. Raises
        `CheckpointError`.
        """
        for name in self._names:
            if name not in self._stored_matrices and not unread(name):
                self._check_type(name, FLOATS)
        for module, tensor in dict.fromkeys((each.module, each.tensor) for each in self._stored_matrices.values()):
            if module not in self._quantized:
                self._check_type(tensor, FLOATS)
                continue
            for part in self._parts(module):
                self._check_type(module + part, self._types(module, part))

    def _parts(self, module: str) -> list[str]:
        """Endings of the tensors that store a quantized matrix."""
        assert self._quantization is not None  # checked when the names were read
        return [part for part in self._quantization.parts if module + part in self._where]

    def _types(self, module: str, part: str) -> Mapping[str, np.dtype[Any]]:
        """Types of the values in a part of a quantized matrix."""
        assert self._quantization is not None  # checked when the names were read
        if part == ".scales" and self._quantization.mode_of(module) != "affine":
            return BYTES
        if part in NUMBERS:
            return FLOATS
        return MLX_WORDS if self._quantization.method == "mlx" else WORDS

    def locations(self) -> Iterator[tuple[str, Path, str]]:
        """List the tensors as they are stored: the name, the file, and the name in the file."""
        for name, file in self._where.items():
            yield name, file, self._stored.get(name, name)

    def adds_nothing(self, name: str) -> bool:
        module = name.removesuffix(".bias")
        return name != module and module in self._quantized and not self[name].any()

    def shape(self, name: str) -> tuple[int, ...]:
        stored_in, plan = self._stored_matrices.get(name), self._quantization
        module = None if stored_in is None else stored_in.module
        if module is None or stored_in is None:
            return self._header(name)[1]
        if plan is None or module not in self._quantized:
            shape = self._header(stored_in.tensor)[1]
        else:
            *outer, words = self._header(module + plan.parts[0])[1]
            shape = (*outer, words * 32 // plan.of(module)[1])
        if stored_in.place is None:
            return shape
        return stored_in.place.shape(shape)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> Quantized:
        if self.format(name) is None:
            raise KeyError(name)
        matrix = self._matrix(name)
        self._check_shape(name, matrix.levels.shape, shape)
        return matrix

    def _file_of(self, name: str) -> Path:
        return self._where.get(name, self.path)

    def _matrix(self, name: str) -> Quantized:
        stored_in, plan, format = self._stored_matrices[name], self._quantization, self.format(name)
        module = stored_in.module
        assert plan is not None  # checked when the names were read
        assert format is not None  # the module is one of the quantized ones
        parts = {
            part: self._read(module + part, stored_in.place, self._types(module, part)) for part in self._parts(module)
        }
        try:
            return plan.unpack(parts, format)
        except (ValueError, KeyError) as error:
            file = self._where[module + plan.packed]
            raise CheckpointError(file, name, f"bad quantized tensor: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
