"""The tensors of a model in GGUF files, under Hugging Face's names, read on access."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.fields import MAX_PARTS
from workers.checkpoints.gguf.architectures import OUTSIDE, architecture_of
from workers.checkpoints.gguf.blocks import plain_values, quantized_matrix
from workers.checkpoints.gguf.gguf_file import MAX_TENSORS, GgufFile, TensorPlace
from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.rotary import FACTORS
from workers.checkpoints.gguf.tensor_types import EVEN
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized
from workers.checkpoints.weights import Weights
from workers.precision import Quantize

_IN_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,7})\.([a-z_]+)\.(weight|bias)", re.ASCII)
STACKS = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"), ("ffn_gate_exps", "ffn_up_exps"))
"""Modules of a layer that a backend may stack: their matrices get one kind of format."""
SINKS = "attn_sinks"
"""The logits of attention sinks, whose name in Hugging Face's checkpoints has no ending."""
ROUTERS = ("ffn_gate_inp",)
"""Modules that choose experts. They are never quantized: an error in one chooses others."""


@dataclass(frozen=True, slots=True)
class _TensorSource:
    """The place of one tensor."""

    tensor: TensorPlace
    expert: int | None = None
    """The index in a stack of experts."""
    heads: int = 0
    """Heads whose rows are in rotated pairs of lanes; 0 leaves the rows as they are."""
    format: GroupFormat | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape if self.expert is None else self.tensor.shape[1:]


class GgufWeights(Weights):
    """The tensors of a model. Rows of queries and keys are in the order of Hugging Face, and norms without the offset
    that their family adds."""

    def __init__(self, model: GgufFile, quantize: Quantize = "none") -> None:
        """With `quantize` no matrix is quantized here: a backend quantizes them anew. Raises `CheckpointError` for a
        tensor of an unknown name."""
        super().__init__(model.path)
        self.files = tuple(model.shards)
        self._model = model
        self._architecture = architecture_of(model)
        keys = Keys(model)
        heads = keys.integer("attention.head_count")
        self._heads = {"attn_q": heads, "attn_k": keys.integer("attention.head_count_kv", heads)}
        self._offset = FAMILIES[self._architecture.family].norm_offset
        self._packed = quantize == "none"
        self._even = self._uneven_stacks()
        self._sources = dict(self._find())

    def _find(self) -> Iterator[tuple[str, _TensorSource]]:
        experts = 0
        for tensor in self._model.tensors.values():
            if tensor.name in FACTORS:
                continue
            if tensor.name in OUTSIDE:
                yield OUTSIDE[tensor.name], _TensorSource(tensor, format=self._format(tensor))
                continue
            match = _IN_LAYER.fullmatch(tensor.name)
            module = None if match is None else self._architecture.names.get(match[2])
            if match is None or module is None:
                problem = f"the tensor is not part of a {self._architecture.family} model"
                raise self._model.error(tensor.name, problem)
            name = f"model.layers.{match[1]}.{module}" + ("" if match[2] == SINKS else f".{match[3]}")
            heads = self._heads.get(match[2], 0) if self._architecture.paired else 0
            if "{}" not in name:
                yield name, _TensorSource(tensor, heads=heads, format=self._format(tensor))
                continue
            if len(tensor.shape) != (2 if match[3] == "bias" else 3) or tensor.shape[0] > MAX_PARTS:
                problem = f"has the shape {tensor.shape}, not that of up to {MAX_PARTS} matrices"
                raise self._model.error(tensor.name, problem)
            experts += tensor.shape[0]
            if experts > MAX_TENSORS:
                raise self._model.error(tensor.name, f"the model has more than {MAX_TENSORS} matrices of experts")
            format = self._format(tensor)
            for expert in range(tensor.shape[0]):
                yield name.format(expert), _TensorSource(tensor, expert, format=format)

    def _uneven_stacks(self) -> frozenset[str]:
        """Find the tensors of stacks whose types have scales or zeros of different kinds."""
        found = set()
        layers: dict[str, dict[str, TensorPlace]] = {}
        for tensor in self._model.tensors.values():
            if (match := _IN_LAYER.fullmatch(tensor.name)) and match[3] == "weight":
                layers.setdefault(match[1], {})[match[2]] = tensor
        for layer in layers.values():
            for names in STACKS:
                stack = [layer[name] for name in names if name in layer and layer[name].type.format is not None]
                kinds = {
                    (each.type.format.scales, each.type.format.zero == "bias") for each in stack if each.type.format
                }
                if len(kinds) > 1:
                    found |= {each.name for each in stack}
        return frozenset(found)

    def _format(self, tensor: TensorPlace) -> GroupFormat | None:
        matrix = (
            len(tensor.shape) > 1
            and tensor.name.endswith(".weight")
            and not any(f".{name}." in tensor.name for name in ROUTERS)
        )
        if not self._packed or not matrix:
            return None
        return EVEN if tensor.name in self._even else tensor.type.format

    def locations(self) -> Iterator[tuple[str, str]]:
        """List the tensors as they are stored: the name here, and that in the file, where experts are stacked."""
        for name, source in self._sources.items():
            yield name, source.tensor.name

    def types(self) -> dict[str, int]:
        """The number of weights of each tensor type, the most frequent first."""
        counts: Counter[str] = Counter()
        for tensor in self._model.tensors.values():
            counts[tensor.type.name] += math.prod(tensor.shape)
        return dict(counts.most_common())

    def widths(self) -> str:
        """Name of the widths of the quantized matrices: `int4`, or `int4+int8`; empty for none."""
        formats = {source.format for source in self._sources.values() if source.format is not None}
        return "+".join(sorted({each.width for each in formats}))

    def inexact(self) -> list[str]:
        """The tensor types whose matrices are quantized anew."""
        sources = {source.tensor.type for source in self._sources.values() if source.format is not None}
        return sorted(kind.name for kind in sources if not kind.exact)

    def __getitem__(self, name: str) -> NDArray[Any]:
        source = self._sources[name]
        values = plain_values(self._blocks(source), source.tensor.type, source.shape)
        if self._offset and name.endswith("norm.weight"):
            values = values.astype(np.float32) - np.float32(self._offset)
        return _in_halves(values, source.heads)

    def format(self, name: str) -> GroupFormat | None:
        source = self._sources.get(name)
        return None if source is None else source.format

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._sources:
            raise self._model.error(name, "the tensor is missing")
        return self._sources[name].shape

    def check_types(self, unread: Callable[[str], bool] = lambda name: False) -> None:
        """Types are checked when the files are opened."""

    def adds_nothing(self, name: str) -> bool:
        return False

    def take(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """See `Weights.take`. The shape is checked first: rows are reordered by heads."""
        self._check_shape(name, self.shape(name), shape)
        return self[name]

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> Quantized:
        source = self._sources[name]
        if source.format is None:
            raise KeyError(name)
        self._check_shape(name, source.shape, shape)
        outputs, inputs = source.shape
        try:
            matrix = quantized_matrix(self._blocks(source), source.tensor.type, (outputs, inputs), source.format)
        except ValueError as error:
            raise self._model.error(source.tensor.name, f"bad quantized tensor: {error}") from error
        if not source.heads:
            return matrix
        levels, scales = (_in_halves(each, source.heads) for each in (matrix.levels, matrix.scales))
        zeros = None if matrix.zeros is None else _in_halves(matrix.zeros, source.heads)
        return Quantized(matrix.format, levels, scales, zeros)

    def _blocks(self, source: _TensorSource) -> NDArray[np.uint8]:
        if source.expert is None:
            return self._model.blocks(source.tensor)
        count = math.prod(source.shape) // source.tensor.type.block
        return self._model.blocks(source.tensor, source.expert * count, count)

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _in_halves(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undo llama.cpp's order of rows: row 2 i + h of a head becomes its row i + h * half."""
    if not heads:
        return rows
    split = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)
