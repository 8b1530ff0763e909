"""The matrices of adapters as parameters of graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workers.checkpoints.lora.adapted_matrices import AdapterStack
from workers.iree.lazy_jax import ArraySpec, jax, jnp
from workers.iree.lora.adapted_ops import AdaptedMatrix, AdapterMatrices
from workers.iree.model.ops import Shape
from workers.iree.model.packed_matrix import Weight
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import Stored
from workers.iree.model.tiled_ops import TiledOps

ADAPTED = "adapted"
"""Prefix of the kinds of graphs whose rows may have adapters."""


@dataclass(frozen=True, slots=True)
class LoraTarget:
    """A matrix of the model that adapters change. Graphs depend on it, and not on which adapters there are."""

    name: str
    """That of the matrix, such as `3.qkv`."""
    a: Shape
    b: Shape
    """The shapes in which the matrices of all adapters are stored."""
    columns: int

    @classmethod
    def of(cls, stack: AdapterStack, stored: Stored, ops: TiledOps | PlainOps) -> LoraTarget:
        """Return the target of a stack, beside a matrix of the model as it is stored."""
        outputs, inputs = stored.padded_shape
        a, b = ops.stored_shape(stack.columns, inputs), ops.stored_shape(outputs, stack.columns)
        return cls(stack.name, a, b, stack.columns)

    def parameters(self, dtype: str) -> Mapping[str, ArraySpec]:
        """Return the types of its parameters by their names in graphs."""
        a, b, owners = parameter_names(self.name)
        kinds = {a: (self.a, dtype), b: (self.b, dtype), owners: ((self.columns,), "int32")}
        return {name: ArraySpec(shape, kind) for name, (shape, kind) in kinds.items()}


@dataclass(frozen=True, slots=True)
class LoraPlan:
    """The matrices that adapters change."""

    targets: tuple[LoraTarget, ...]

    @classmethod
    def of(cls, stacks: Sequence[AdapterStack], weights: Sequence[Stored], ops: TiledOps | PlainOps) -> LoraPlan:
        """Return the plan for the stacks of a model's adapters."""
        stored = {each.name: each for each in weights}
        return cls(tuple(LoraTarget.of(stack, stored[stack.name], ops) for stack in stacks))

    def nbytes(self, dtype: str) -> int:
        """Return the bytes of all parameters."""
        return sum(each.nbytes for each in self.parameters(dtype).values())

    def parameters(self, dtype: str) -> Mapping[str, ArraySpec]:
        """Return the types of all parameters by name."""
        return {name: each for target in self.targets for name, each in target.parameters(dtype).items()}

    def adapted(self, weights: Mapping[str, Any], adapters: jax.Array, tokens: int) -> dict[str, Any]:
        """Return the model's weights of a graph, with the adapters' beside those that they change. `adapters` is int32
        [batch], of `tokens` rows each."""
        own = [name for target in self.targets for name in parameter_names(target.name)]
        found = {name: array for name, array in weights.items() if name not in own}
        rows = jnp.repeat(adapters, tokens) if tokens > 1 else adapters
        for target in self.targets:
            a, b, owners = (weights[name] for name in parameter_names(target.name))
            found[target.name] = AdaptedMatrix(found[target.name], AdapterMatrices(a, b, owners, rows))
        return found


def typed(stored: Stored, array: Any) -> Weight | AdaptedMatrix:
    """Return a tensor of a graph as operations take it."""
    if isinstance(array, AdaptedMatrix):
        assert isinstance(array.base, jax.Array), "typed once"
        return replace(array, base=stored.typed(array.base))
    return stored.typed(array)


def parameter_names(matrix: str) -> tuple[str, str, str]:
    """Return the names of the parameters of a matrix: A and B of all adapters, and the owners of their columns."""
    return f"lora.{matrix}.a", f"lora.{matrix}.b", f"lora.{matrix}.owners"
