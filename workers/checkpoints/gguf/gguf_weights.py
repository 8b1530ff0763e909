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
from workers.checkpoints.gguf.architectures import architecture_of, kv_heads_of, layers_of
from workers.checkpoints.gguf.blocks import plain_values, quantized_matrix
from workers.checkpoints.gguf.gguf_file import MAX_TENSORS, GgufFile, TensorPlace
from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.layouts.orders import IN_ORDER, StoredOrder, from_pairs
from workers.checkpoints.gguf.rotary import FACTORS
from workers.checkpoints.gguf.tensor_types import EVEN
from workers.checkpoints.quantized_matrix import GroupFormat, Quantized
from workers.checkpoints.weights import Weights
from workers.precision import Quantize

_IN_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,7})\.([a-z0-9_]+(?:\.[a-z0-9_]+)?)", re.ASCII)
_ENDS = (".weight", ".bias")
STACKS = (
    ("attn_q", "attn_k", "attn_v"),
    ("attn_qkv", "attn_gate"),
    ("ffn_gate", "ffn_up"),
    ("ffn_gate_exps", "ffn_up_exps"),
    ("ffn_gate_shexp", "ffn_up_shexp"),
)
"""Modules of a layer that a backend may stack: their matrices get one kind of format."""


@dataclass(frozen=True, slots=True)
class _TensorSource:
    """The place of one tensor."""

    tensor: TensorPlace
    module: str = ""
    """Its name within a layer, without `.weight` or `.bias`."""
    index: int | None = None
    """The index in a stack of experts or of heads."""
    order: StoredOrder = IN_ORDER
    format: GroupFormat | None = None
    row: bool = False
    """A vector that is a matrix of one row elsewhere."""
    flat: bool = False
    """A matrix that is a vector elsewhere."""
    merged: bool = False
    """Matrices that are one below the other elsewhere."""

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in the file."""
        if self.merged:
            return (math.prod(self.tensor.shape[:-1]), self.tensor.shape[-1])
        return self.tensor.shape if self.index is None else self.tensor.shape[1:]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in Hugging Face's order."""
        rows = self.order.rows
        if self.row:
            return (1, math.prod(self.stored))
        if self.flat:
            return (math.prod(self.stored),)
        return self.stored if rows is None else (len(rows), *self.stored[1:])


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
        self._layers = layers_of(keys)
        family = FAMILIES[self._architecture.family]
        self._names, self._offset = family.names, family.norm_offset
        self._rows = {"ffn_gate_inp_shexp", *(["exp_probs_b"] if family.names.experts.router_bias_row else [])}
        self._orders = self._architecture.orders(keys)
        heads = keys.integer("attention.head_count")
        self._heads = {"attn_q": heads, "attn_k": kv_heads_of(keys)} if self._architecture.paired else {}
        self._packed = quantize == "none"
        self._even = self._uneven_stacks()
        self._sources = dict(self._find())

    def _find(self) -> Iterator[tuple[str, _TensorSource]]:
        matrices = 0
        for tensor in self._model.tensors.values():
            if tensor.name in FACTORS:
                continue
            module, end = _split(tensor.name)
            outside = self._outside(module)
            if outside is not None:
                yield outside + end, _TensorSource(tensor, module, format=self._format(tensor, module))
                continue
            match = _IN_LAYER.fullmatch(module)
            if match is not None and int(match[1]) >= self._layers:
                continue  # of a head for multi-token prediction
            names = None if match is None else self._names_of(match[2], end)
            if match is None or names is None:
                problem = f"the tensor is not part of a {self._architecture.family} model"
                raise self._model.error(tensor.name, problem)
            for within in names:
                name, several = f"{self._names.layers}{match[1]}.{within}", "{}" in within
                count = self._stacked(tensor, matrix=end == ".weight" and "exps" in match[2]) if several else 0
                matrices += count
                if matrices > MAX_TENSORS:
                    raise self._model.error(tensor.name, f"the model has more than {MAX_TENSORS} matrices of experts")
                format, order = self._format(tensor, match[2]), self._order(tensor, match[2], within)
                if format is not None and not order.keeps_groups(format.group):
                    format = None
                for index in range(count):
                    yield name.format(index), _TensorSource(tensor, match[2], index, order, format)
                if not several:
                    row = match[2] in self._rows and len(tensor.shape) == 1
                    flat = match[2] in self._architecture.flat
                    merged = match[2] in self._architecture.merged
                    if merged and len(tensor.shape) != 3:
                        problem = f"has the shape {tensor.shape}, not that of a matrix for each head"
                        raise self._model.error(tensor.name, problem)
                    format = None if flat else format
                    yield name, _TensorSource(tensor, match[2], None, order, format, row, flat, merged)

    def _outside(self, module: str) -> str | None:
        """Return Hugging Face's name of a module outside of layers."""
        names = self._names
        by_module = {"token_embd": names.embedding, "output_norm": names.norm, "token_embd_norm": names.norm}
        return (by_module | {"output": names.head} | dict(self._architecture.outside)).get(module)

    def _names_of(self, module: str, end: str) -> tuple[str, ...] | None:
        """Return Hugging Face's names within a layer of what a tensor holds, with their ends."""
        known = self._architecture.names
        if module + end in known:
            return (known[module + end],)
        if module in self._architecture.split:
            return tuple(f"{name}{end}" for name in self._architecture.split[module])
        return None if module not in known else (known[module] + end,)

    def _stacked(self, tensor: TensorPlace, *, matrix: bool) -> int:
        """Return the number of matrices or vectors in a tensor."""
        if len(tensor.shape) != (3 if matrix else 2) or tensor.shape[0] > MAX_PARTS:
            kind = "matrices" if matrix else "vectors"
            problem = f"has the shape {tensor.shape}, not that of up to {MAX_PARTS} {kind}"
            raise self._model.error(tensor.name, problem)
        return tensor.shape[0]

    def _order(self, tensor: TensorPlace, module: str, name: str) -> StoredOrder:
        """Return the order of a tensor. Raises `CheckpointError` where it has another number of rows or columns."""
        if module in self._heads:
            heads = self._heads[module]
            if not tensor.shape or tensor.shape[0] % (2 * heads):
                raise self._model.error(
                    tensor.name, f"has the shape {tensor.shape}, not rows of {heads} heads in pairs"
                )
            return from_pairs(heads, tensor.shape[0])
        order = self._orders.get(name.removesuffix(".weight"), self._orders.get(module, IN_ORDER))
        if not order.fits(tensor.shape[1:] if "{}" in name else tensor.shape):
            raise self._model.error(tensor.name, f"has the shape {tensor.shape}, not what the metadata says")
        return order

    def _uneven_stacks(self) -> frozenset[str]:
        """Find the tensors of stacks whose types have scales or zeros of different kinds."""
        found = set()
        layers: dict[str, dict[str, TensorPlace]] = {}
        for tensor in self._model.tensors.values():
            module, end = _split(tensor.name)
            if (match := _IN_LAYER.fullmatch(module)) and end == ".weight":
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

    def _format(self, tensor: TensorPlace, module: str) -> GroupFormat | None:
        matrix = len(tensor.shape) > 1 and tensor.name.endswith(".weight") and module not in self._architecture.precise
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
        source, architecture = self._sources[name], self._architecture
        values = plain_values(self._blocks(source), source.tensor.type, source.stored)
        if self._offset and name.endswith("norm.weight") and source.module not in architecture.uncentred:
            values = values.astype(np.float32) - np.float32(self._offset)
        if source.module in architecture.values:
            try:
                values = architecture.values[source.module](values.astype(np.float32))
            except ValueError as error:
                raise self._model.error(source.tensor.name, str(error)) from error
        values = source.order.restore(values).reshape(source.shape)
        return values[:, None] if self._has_taps(source) else values

    def format(self, name: str) -> GroupFormat | None:
        source = self._sources.get(name)
        return None if source is None else source.format

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._sources:
            raise self._model.error(name, "the tensor is missing")
        source = self._sources[name]
        return (source.shape[0], 1, *source.shape[1:]) if self._has_taps(source) else source.shape

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
        outputs, inputs = source.stored
        try:
            matrix = quantized_matrix(self._blocks(source), source.tensor.type, (outputs, inputs), source.format)
        except ValueError as error:
            raise self._model.error(source.tensor.name, f"bad quantized tensor: {error}") from error
        return source.order.restore_quantized(matrix)

    def _has_taps(self, source: _TensorSource) -> bool:
        """Return whether a tensor has the taps of a convolution, which may have a bias beside them."""
        return source.module in self._architecture.taps and len(source.shape) == 2

    def _blocks(self, source: _TensorSource) -> NDArray[np.uint8]:
        if source.index is None:
            return self._model.blocks(source.tensor)
        count = math.prod(source.stored) // source.tensor.type.block
        return self._model.blocks(source.tensor, source.index * count, count)

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _split(name: str) -> tuple[str, str]:
    """Return the name of a tensor's module, and `.weight`, `.bias` or nothing."""
    end = next((end for end in _ENDS if name.endswith(end)), "")
    return name.removesuffix(end), end
