"""Room for adapters that are loaded at run time: columns beside the matrices of a model.

The number of an adapter alone decides which columns are its own. So its sums have the same order on all workers,
whatever else is loaded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.tensors import Tensor
from workers.checkpoints.lora.adapted_matrices import (
    RANK_MULTIPLE,
    AdapterStack,
    StackPart,
    adaptable_modules,
    adapter_stacks,
)
from workers.checkpoints.lora.adapter_weights import AdapterWeights


@dataclass(frozen=True, slots=True)
class PlacedAdapter:
    """The matrices of one adapter beside one of the model, at its place."""

    name: str
    """The name of the matrix, such as `3.qkv`."""
    start: int
    """The first of its columns."""
    a: NDArray[np.float32]
    """[its columns, inputs]; rows that it does not use are zero."""
    b: NDArray[np.float32]
    """[outputs, its columns], the outputs in the order in which the rows of the model's matrix are read."""


@dataclass(frozen=True)
class AdapterPlaces:
    """Places for adapters with the numbers from 1 to `count`, of ranks up to `max_rank`."""

    config: ModelConfig
    """That of the checkpoint, without padding."""
    count: int
    max_rank: int

    @property
    def width(self) -> int:
        """Columns of an adapter beside one module: whole vectors."""
        return -(-self.max_rank // RANK_MULTIPLE) * RANK_MULTIPLE

    def nbytes(self, item: int) -> int:
        """Return the bytes of all places, in numbers of `item` bytes."""
        return sum(
            item * stack.columns * (stack.tensor.rows + stack.tensor.sources[0][1][1]) + 4 * stack.columns
            for stack in self.stacks
        )

    @cached_property
    def stacks(self) -> tuple[AdapterStack, ...]:
        """The columns of all places beside each matrix that adapters may change."""
        return tuple(self._stack(*each) for each in self._matrices.values())

    def read(self, adapter: AdapterWeights, number: int) -> Iterator[PlacedAdapter]:
        """Read an adapter for its place, also beside matrices that it does not change: all of the place is written.
        Raises `CheckpointError` for one that does not fit the model, before the first matrix."""
        adapter_stacks(self.config, [adapter])
        for tensor, modules in self._matrices.values():
            yield self._placed(tensor, modules, adapter, number)

    def _placed(self, tensor: Tensor, modules: list[str], adapter: AdapterWeights, number: int) -> PlacedAdapter:
        sizes, width = [shape[0] for _, shape in tensor.sources], self.width
        a = np.zeros((len(modules) * width, tensor.sources[0][1][1]), np.float32)
        b = np.zeros((sum(sizes), len(modules) * width), np.float32)
        for source, module in enumerate(modules):
            if module not in adapter.pairs:
                continue
            pair, order = adapter.pair(module), tensor.orders[source] if tensor.orders else None
            mine, first = slice(source * width, source * width + len(pair.a)), sum(sizes[:source])
            a[mine] = pair.a
            b[first : first + sizes[source], mine] = pair.b if order is None else pair.b[order.rows()]
        return PlacedAdapter(tensor.name, (number - 1) * len(modules) * width, a, b)

    def _stack(self, tensor: Tensor, modules: list[str]) -> AdapterStack:
        parts = [
            StackPart(number, source, module, ((number - 1) * len(modules) + source) * self.width, self.width)
            for number in range(1, self.count + 1)
            for source, module in enumerate(modules)
        ]
        return AdapterStack(tensor, tuple(parts))

    @cached_property
    def _matrices(self) -> dict[str, tuple[Tensor, list[str]]]:
        """The matrices that adapters may change, and the modules of each in the order of its sources."""
        found: dict[str, tuple[Tensor, list[str]]] = {}
        for module, (tensor, _) in adaptable_modules(self.config).items():
            found.setdefault(tensor.name, (tensor, []))[1].append(module)
        return found
