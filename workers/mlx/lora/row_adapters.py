"""Linear modules whose rows may have adapters.

The pairs of all adapters are one product each, as on IREE (`workers.iree.lora.adapted_ops`): A of all of them gives the
columns of every adapter, those of the others become zero in each row, and B of all of them adds up what is left. So a
row depends on the number of rows of a call as it does in the module's own product, and on nothing else.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten

from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.lora.adapted_matrices import AdapterStack, StackPart, adapter_stacks, read_adapters
from workers.checkpoints.lora.adapter_weights import AdapterWeights
from workers.engine.runner import Chunk

RENAMED = (
    ("gpt_neox.layers.", "model.h."),
    (".feed_forward.w1", ".feed_forward.gate_proj"),
    (".feed_forward.w2", ".feed_forward.down_proj"),
    (".feed_forward.w3", ".feed_forward.up_proj"),
)
"""Parts of the names of modules in checkpoints, and those that mlx-lm gives them when it reads the weights."""


class StepAdapters:
    """The adapters of the rows of the next forward. Owned by the runner, read by the modules."""

    def __init__(self) -> None:
        self.rows: mx.array | None = None
        """int32 [rows]: the adapter of each row, 0 for none; None if no row has one."""

    def set(self, chunks: Sequence[Chunk]) -> None:
        """Set those of the rows of chunks."""
        self.rows = None
        if any(chunk.adapter for chunk in chunks):
            rows = [chunk.adapter for chunk in chunks for _ in chunk.tokens]
            self.rows = mx.array(rows, dtype=mx.int32)


class RowAdaptedLinear(nn.Module):  # type: ignore[misc]
    """A linear module, plain or quantized, and the pairs of all adapters beside it."""

    def __init__(self, linear: nn.Module, a: mx.array, b: mx.array, owners: mx.array, step: StepAdapters) -> None:
        """`a` is [inputs, columns], `b` [columns, outputs], and `owners` int32 [columns] has the adapter of each
        column."""
        super().__init__()
        self.linear = linear
        self.lora_a = a
        self.lora_b = b
        self._owners = owners
        self._step = step

    def __call__(self, x: mx.array) -> mx.array:
        out: mx.array = self.linear(x)
        rows = self._step.rows
        if rows is None:
            return out
        rows = rows.reshape(-1, *[1] * (x.ndim - 1))
        low = mx.where(rows == self._owners, x @ self.lora_a, 0)
        return mx.where(rows > 0, out + (low @ self.lora_b).astype(out.dtype), out)


class LinearModules:
    """The linear modules of a model, plain or quantized, by their names in mlx-lm."""

    def __init__(self, model: Any) -> None:
        found = dict(model.named_modules())
        self._found = {name: each for name, each in found.items() if isinstance(each, nn.Linear | nn.QuantizedLinear)}

    def __getitem__(self, name: str) -> nn.Module:
        return self._found[name]

    def name(self, module: str) -> str | None:
        """Return the name of a module of the checkpoint; None if it is no linear module here."""
        renamed = module
        for before, after in RENAMED:
            renamed = renamed.replace(before, after)
        return next((name for name in (module, renamed) if name in self._found), None)


def add_row_adapters(
    model: Any, config: ModelConfig, modules: Sequence[tuple[str, Path]], max_rank: int, step: StepAdapters
) -> None:
    """Put adapters, by name and directory, beside the linear modules of a model. Raises `CheckpointError` that names
    the file and the field or tensor."""
    adapters, linear_modules = read_adapters(modules, max_rank), LinearModules(model)
    changed: list[tuple[str, nn.Module]] = []
    for module, parts in _by_module(adapter_stacks(config, adapters)).items():
        name, first = linear_modules.name(module), adapters[parts[0].adapter - 1]
        if name is None:
            problem = f"{module} is no linear module on the MLX backend: take --backend iree"
            raise first.error(first.pairs[module].a, problem)
        changed.append((name, RowAdaptedLinear(linear_modules[name], *_matrices(parts, adapters), step)))
    model.update_modules(tree_unflatten(changed))


def _by_module(stacks: Sequence[AdapterStack]) -> dict[str, list[StackPart]]:
    """Return the pairs of each module."""
    found: dict[str, list[StackPart]] = {}
    for stack in stacks:
        for part in stack.parts:
            found.setdefault(part.module, []).append(part)
    return found


def _matrices(parts: Sequence[StackPart], adapters: Sequence[AdapterWeights]) -> tuple[mx.array, mx.array, mx.array]:
    """Return A, B and the owners of the columns, of the pairs of one module."""
    pairs = [adapters[part.adapter - 1].pair(part.module) for part in parts]
    a, b = np.concatenate([pair.a for pair in pairs]).T, np.concatenate([pair.b for pair in pairs], axis=1).T
    owners = np.repeat([part.adapter for part in parts], [part.rank for part in parts])
    return mx.array(np.ascontiguousarray(a)), mx.array(np.ascontiguousarray(b)), mx.array(owners.astype(np.int32))
