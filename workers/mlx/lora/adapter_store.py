"""Places for adapters beside the linear modules of a model, which are written between two steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten

from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.lora.adapted_matrices import adaptable_modules, adapter_stacks
from workers.checkpoints.lora.adapter_places import AdapterPlaces
from workers.checkpoints.lora.adapter_weights import AdapterWeights, LoraPair
from workers.engine.adapters.adapter_slots import PutAdapter
from workers.load_options import LoadOptions
from workers.mlx.lora.row_adapters import LinearModules, RowAdaptedLinear, StepAdapters


class LinearAdapterStore:
    """Implements `workers.engine.adapters.adapter_slots.AdapterSlots`. Owned by the runner."""

    def __init__(self, model: Any, places: AdapterPlaces, step: StepAdapters, device: mx.Device) -> None:
        """Put the columns of all places, which are zero, beside the linear modules of a model."""
        self._places = places
        self._device = device
        self._modules: dict[str, RowAdaptedLinear] = {}
        """By their names in the checkpoint."""
        linear_modules, columns = LinearModules(model), places.count * places.width
        changed: list[tuple[str, nn.Module]] = []
        owners = mx.array(np.repeat(np.arange(1, places.count + 1), places.width).astype(np.int32))
        for module, (tensor, source) in adaptable_modules(places.config).items():
            if (name := linear_modules.name(module)) is None:
                continue
            outputs, inputs = tensor.sources[source][1]
            zeros = mx.zeros((inputs, columns)), mx.zeros((columns, outputs))
            self._modules[module] = RowAdaptedLinear(linear_modules[name], *zeros, owners, step)
            changed.append((name, self._modules[module]))
        model.update_modules(tree_unflatten(changed))

    def load(self, modules: Sequence[tuple[str, Path]]) -> None:
        """Read the adapters that are loaded with the model. Raises `CheckpointError`."""
        for number, (_, path) in enumerate(modules, 1):
            self.read(path)(number)

    def read(self, directory: Path) -> PutAdapter:
        """See `AdapterSlots.read`."""
        adapter = AdapterWeights(directory.name, directory, self._places.max_rank)
        adapter_stacks(self._places.config, [adapter])
        for module, header in adapter.pairs.items():
            if module not in self._modules:
                problem = f"{module} is no linear module on the MLX backend: take --backend iree"
                raise adapter.error(header.a, problem)
        pairs = {module: adapter.pair(module) for module in adapter.pairs}
        return lambda number: self._put(pairs, number)

    def _put(self, pairs: Mapping[str, LoraPair], number: int) -> None:
        width = self._places.width
        mine = slice((number - 1) * width, number * width)
        with mx.stream(self._device):
            for name, module in self._modules.items():
                a, b = module.lora_a, module.lora_b
                a[:, mine], b[mine] = 0, 0
                if (pair := pairs.get(name)) is not None:
                    own = slice(mine.start, mine.start + len(pair.a))
                    a[:, own] = mx.array(np.ascontiguousarray(pair.a.T)).astype(a.dtype)
                    b[own] = mx.array(np.ascontiguousarray(pair.b.T)).astype(b.dtype)
                mx.eval(a, b)  # one after the other: each needs a copy meanwhile


def adapter_places(config: ModelConfig, options: LoadOptions) -> AdapterPlaces | None:
    """Return the places for the adapters of a model, if some may be loaded at run time."""
    if not options.runtime_loras:
        return None
    return AdapterPlaces(config, len(options.lora_modules) + options.runtime_loras, options.max_lora_rank)
