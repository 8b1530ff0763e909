"""The matrices of a model that adapters change, and the pairs of all adapters for each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.tensors import Tensor, tensors
from workers.checkpoints.lora.adapter_weights import FLOAT32_MAX, AdapterWeights, PairHeader

ADAPTED = ("qkv", "o", "gate_up", "up", "down")
"""The matrices of a layer that adapters may change: those of attention and of an MLP without experts."""
RANK_MULTIPLE = 32
"""The columns of a stack are a multiple of this: whole vectors of every number type."""


@dataclass(frozen=True, slots=True)
class StackPart:
    """The place of one pair in a stack: it begins at column `start`, and its outputs are those of one source."""

    adapter: int
    """The index of the adapter, from 1 on; 0 is none."""
    source: int
    """The index of the module among the sources of the matrix."""
    module: str
    start: int
    rank: int


@dataclass(frozen=True, slots=True)
class AdapterStack:
    """The pairs of all adapters for one matrix of the model, side by side: A is [columns, inputs], B is [outputs,
    columns], where each pair has columns of its own and B is zero elsewhere."""

    tensor: Tensor
    parts: tuple[StackPart, ...]

    @property
    def name(self) -> str:
        """The name of the matrix, such as `3.qkv`."""
        return self.tensor.name

    @property
    def columns(self) -> int:
        used = sum(part.rank for part in self.parts)
        return -(-used // RANK_MULTIPLE) * RANK_MULTIPLE

    @property
    def owners(self) -> NDArray[np.int32]:
        """The adapter of each column, int32 [columns]; -1 for padding."""
        found = np.full(self.columns, -1, np.int32)
        for part in self.parts:
            found[part.start : part.start + part.rank] = part.adapter
        return found

    def matrices(self, adapters: Sequence[AdapterWeights]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Read A and B, the outputs of each source in the order in which the rows of the model's matrix are read.
        Raises `CheckpointError`."""
        sizes = [shape[0] for _, shape in self.tensor.sources]
        a = np.zeros((self.columns, self.tensor.sources[0][1][1]), np.float32)
        b = np.zeros((sum(sizes), self.columns), np.float32)
        for part in self.parts:
            pair = adapters[part.adapter - 1].pair(part.module)
            order = self.tensor.orders[part.source] if self.tensor.orders else None
            mine, first = slice(part.start, part.start + part.rank), sum(sizes[: part.source])
            a[mine] = pair.a
            b[first : first + sizes[part.source], mine] = pair.b if order is None else pair.b[order.rows()]
        return a, b


def read_adapters(
    modules: Sequence[tuple[str, Path]], max_rank: int, largest: float = FLOAT32_MAX
) -> list[AdapterWeights]:
    """Open adapters by name and directory; their weights are read later. The bounds are those of `AdapterWeights`.
    Raises `CheckpointError`."""
    return [AdapterWeights(name, path, max_rank, largest) for name, path in modules]


def adapter_stacks(config: ModelConfig, adapters: Sequence[AdapterWeights]) -> list[AdapterStack]:
    """Return the stacks of the matrices that adapters change, in the order of the model's tensors. Raises
    `CheckpointError` that names a module which the model does not have, or which cannot be adapted."""
    places = adaptable_modules(config)
    parts: dict[str, list[StackPart]] = {}
    for index, adapter in enumerate(adapters, 1):
        for module, header in adapter.pairs.items():
            tensor, source = _place(config, adapter, places, module, header)
            mine = parts.setdefault(tensor.name, [])
            start = mine[-1].start + mine[-1].rank if mine else 0
            mine.append(StackPart(index, source, module, start, header.rank))
    by_name = {tensor.name: tensor for tensor, _ in places.values()}
    return [AdapterStack(tensor, tuple(parts[name])) for name, tensor in by_name.items() if name in parts]


def adaptable_modules(config: ModelConfig) -> Mapping[str, tuple[Tensor, int]]:
    """Return the matrix and the index of its source, by the module of a checkpoint."""
    found = {}
    for tensor in tensors(config):
        layer, _, kind = tensor.name.partition(".")
        if kind in ADAPTED and int(layer) < config.layers:
            for index, (source, _) in enumerate(tensor.sources):
                found[source.removesuffix(".weight")] = (tensor, index)
    return found


def _place(
    config: ModelConfig,
    adapter: AdapterWeights,
    places: Mapping[str, tuple[Tensor, int]],
    module: str,
    header: PairHeader,
) -> tuple[Tensor, int]:
    if module not in places:
        known = ", ".join(sorted({name.rpartition(".")[2] for name in places}))
        problem = f"adapters of {config.family} may change {known or 'no module'} of its layers, not {module}"
        raise adapter.error(header.a, problem)
    tensor, source = places[module]
    outputs, inputs = tensor.sources[source][1]
    for name, found, wanted in ((header.a, header.inputs, inputs), (header.b, header.outputs, outputs)):
        if found != wanted:
            kind = "inputs" if name == header.a else "outputs"
            raise adapter.error(name, f"has {found} {kind}, {module} has {wanted}")
    return tensor, source
