"""The tensors of a checkpoint in FP8, FP4, NF4 or the integers of compressed-tensors, read on access."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.wrapper import Wrapper
from workers.checkpoints.expert_stacks import MAX_EXPERTS, ExpertMatrix, StackLayout, unstacked
from workers.checkpoints.json_files import CheckpointError
from workers.checkpoints.low_bits.config import IGNORED, LowBits
from workers.checkpoints.low_bits.fp4_layouts import MX_GROUP
from workers.checkpoints.low_bits.layout import GROUPS, LowBitLayout, Parts, Shape
from workers.checkpoints.low_bits.raw_tensors import RawTensors
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized
from workers.checkpoints.weights import FLOATS, SCALES, SafetensorsWeights, Weights
from workers.precision import Quantize

T = TypeVar("T")

BYTES = ("F8_E4M3", "F8_E8M0")
"""Types of one byte that numpy does not have; they are read as bytes."""
OTHER_TYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(kind) for name, kind in (("U8", "u1"), ("I8", "i1"), ("I32", "<i4"), ("I64", "<i8"), ("U32", "<u4"))
}
"""Types of integers by safetensors' names."""
PLAIN = (".gate.weight", ".router.weight")
"""Endings of routers, which are never served quantized: an error in one chooses other experts."""
MTP = ("model.mtp_layers.", "mtp.")
"""Prefix of heads for multi-token prediction, which are served in the model's type."""


@dataclass(frozen=True, slots=True)
class _LowBitMatrix:
    """One quantized matrix."""

    layout: LowBitLayout
    module: str
    """The name without `.weight`; of a stack that without the ending."""
    place: ExpertMatrix | None = None
    """The place in a stack of experts."""


class LowBitWeights(SafetensorsWeights):
    """The tensors of a directory; a quantized matrix is there under its `.weight` name, dequantized to float32.

    Matrices with a `format` are served as integers or FP4: the same weights where the layout is `exact`, else quantized
    anew to int8.
    """

    def __init__(
        self,
        directory: Path,
        scheme: LowBits,
        quantize: Quantize = "none",
        wrapper: Wrapper | None = None,
        stacks: StackLayout = "halves",
    ) -> None:
        """With `quantize` no matrix has a format: a backend quantizes them anew. Raises `CheckpointError` for a matrix
        whose scales are missing."""
        super().__init__(directory, None, wrapper, stacks)
        self.scheme = scheme
        self._packed = quantize == "none"
        self._raw = RawTensors()
        self._matrices = dict(self._find_matrices())
        hidden = {name for name in self._where if name.endswith(IGNORED)}
        for matrix in self._matrices.values():
            hidden |= {matrix.module + part for part in self._types_of(matrix)}
        visible = [name for name in self._names if name not in hidden and name not in self._matrices]
        self._names = dict.fromkeys([*visible, *sorted(self._matrices)])

    def _find_matrices(self) -> Iterator[tuple[str, _LowBitMatrix]]:
        """List the quantized matrices by name. Raises `CheckpointError` for a part that is missing."""
        for stored in self._where:
            layouts = [each for each in self.scheme.layouts if stored.endswith(each.codes)]
            if not layouts or self._header(stored)[0] not in layouts[0].code_types:
                continue
            module = stored.removesuffix(layouts[0].codes)
            whole = (each for each in layouts if all(module + part in self._where for part in each.required))
            layout = next(whole, None)
            if layout is None:
                missing = next(module + part for part in layouts[0].required if module + part not in self._where)
                raise CheckpointError(self._where[stored], missing, f"the tensor is missing, which {stored} needs")
            if not layout.stacked:
                yield f"{module}.weight", _LowBitMatrix(layout, module)
                continue
            experts = self._experts(stored, [module + part for part in layout.required])
            for name, place in unstacked(stored, experts, self.stacks):
                yield name, _LowBitMatrix(layout, module, place)

    def _experts(self, codes: str, others: Iterable[str]) -> int:
        """Return how many experts a stack of codes and `others` have. Raises `CheckpointError` for too many, and
        for tensors that are no such stacks."""
        experts = next(iter(self._header(codes)[1]), 0)
        if experts > MAX_EXPERTS:
            raise CheckpointError(self._where[codes], codes, f"stacks {experts} experts, more than {MAX_EXPERTS}")
        for name in (codes, *others):
            shape = self._header(name)[1]
            if len(shape) < 3 or shape[0] != experts:
                raise CheckpointError(self._where[name], name, f"has the shape {shape}, not that of {experts} experts")
        return experts

    def _types_of(self, matrix: _LowBitMatrix) -> dict[str, tuple[str, ...]]:
        """Return the types that the tensors of a matrix may have, by their endings."""
        layout = matrix.layout
        found = {part: types for part, types in layout.optional.items() if matrix.module + part in self._where}
        return {layout.codes: layout.code_types, **layout.required, **found}

    def _parts_of(self, matrix: _LowBitMatrix, endings: tuple[str, ...] | None = None) -> Parts:
        """Read the tensors of a matrix, or those with these endings."""
        types = self._types_of(matrix)
        chosen = types if endings is None else {part: types[part] for part in endings}
        return {part: self._read_part(matrix.module + part, kinds, matrix.place) for part, kinds in chosen.items()}

    def _read_part(self, name: str, types: tuple[str, ...], place: ExpertMatrix | None) -> NDArray[Any]:
        kind = self._part_type(name, types)
        if kind in BYTES:
            return self._raw.read(self._where[name], self._stored.get(name, name))
        return self._read(name, place, {**FLOATS, **OTHER_TYPES})

    def _part_type(self, name: str, types: tuple[str, ...]) -> str:
        """Return the type of a part, by safetensors' name. Raises `CheckpointError` unless it is one of `types`."""
        kind = self._header(name)[0]
        if kind not in types:
            raise CheckpointError(self._where[name], name, f"type {kind} is not supported, only {' or '.join(types)}")
        return kind

    def __getitem__(self, name: str) -> NDArray[Any]:
        matrix = self._matrices.get(name)
        if matrix is None:
            return super().__getitem__(name)
        shape = self._shape_of(name, matrix)
        return self._named(name, lambda: matrix.layout.values(self._parts_of(matrix), shape, 0, shape[0]))

    def format(self, name: str) -> GroupFormat | None:
        matrix = self._matrices.get(name)
        if matrix is None or not self._packed or name.endswith(PLAIN) or name.startswith(MTP):
            return None
        scale, types = next(iter(matrix.layout.required.items()))
        kind = self._part_type(matrix.module + scale, types)
        return matrix.layout.format(self._shape_of(name, matrix), SCALES.get(kind, "float32"))

    def shape(self, name: str) -> tuple[int, ...]:
        matrix = self._matrices.get(name)
        return super().shape(name) if matrix is None else self._shape_of(name, matrix)

    def _shape_of(self, name: str, matrix: _LowBitMatrix) -> Shape:
        codes = self._header(matrix.module + matrix.layout.codes)[1]
        if matrix.place is not None:
            codes = matrix.place.shape(codes)
        return self._named(name, lambda: matrix.layout.shape(codes, self._parts_of(matrix, matrix.layout.stated)))

    def _named(self, name: str, compute: Callable[[], T]) -> T:
        """Return what `compute` does. Raises `CheckpointError` with the name of the tensor for its ValueError."""
        try:
            return compute()
        except (ValueError, UnicodeDecodeError) as error:
            matrix = self._matrices[name]
            file = self._where[matrix.module + matrix.layout.codes]
            raise CheckpointError(file, name, f"bad quantized tensor: {error}") from error

    def check_types(self, unread: Callable[[str], bool] = lambda name: False) -> None:
        for name in self._names:
            if (matrix := self._matrices.get(name)) is None:
                stored = self._stored_matrices.get(name)
                if not unread(name):
                    self._check_type(name if stored is None else stored.tensor, FLOATS)
                continue
            for part, types in self._types_of(matrix).items():
                self._part_type(matrix.module + part, types)

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> Quantized:
        format = self.format(name)
        if format is None:
            raise KeyError(name)
        matrix = self._matrices[name]
        own = self._shape_of(name, matrix)
        self._check_shape(name, own, shape)
        return self._named(name, lambda: matrix.layout.quantized(self._parts_of(matrix), own, format))

    def mlx_bits(self, name: str) -> float | None:
        format = self.format(name)
        if format is not None and made_int8_by_mlx(format):
            return 8 + 2 * 32 / mlx_int8(self.shape(name)[1]).group  # a scale and a bias in float32
        return Weights.mlx_bits(self, name)

    def widths(self, *, mlx: bool = False) -> str:
        """Name of the widths of the served matrices: `int4`, or `fp4+int8`; empty for none. `mlx`: as that backend
        serves them, which has FP4 in groups of 32 alone."""
        formats = [format for name in self._matrices if (format := self.format(name)) is not None]
        return "+".join(sorted({"int8" if mlx and made_int8_by_mlx(each) else each.width for each in formats}))

    def kinds(self) -> list[str]:
        """Names of the layouts of the matrices."""
        return sorted({matrix.layout.name for matrix in self._matrices.values()})

    def inexact(self, *, mlx: bool = False) -> list[str]:
        """Names of the layouts whose matrices are quantized anew; `mlx` as above."""
        formats = {matrix.layout: self.format(name) for name, matrix in self._matrices.items()}
        return sorted(
            {
                layout.name
                for layout, format in formats.items()
                if format is not None and not (layout.exact and not (mlx and made_int8_by_mlx(format)))
            }
        )


def mlx_int8(inputs: int) -> GroupFormat:
    """Return the format of matrices that MLX gets in 8 bits. Raises ValueError for inputs that are no whole groups."""
    group = next((group for group in GROUPS if inputs % group == 0), None)
    if group is None:
        raise ValueError(f"{inputs} inputs are no whole groups of {GROUPS[-1]}")
    return GroupFormat(8, group, "middle", "float32")


def made_int8_by_mlx(format: GroupFormat) -> bool:
    """Return whether MLX cannot multiply by a format: FP4 whose scales are no powers of two."""
    return format.e2m1 and format.group != MX_GROUP
