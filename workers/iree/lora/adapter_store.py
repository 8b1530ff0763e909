"""Places for adapters in the memory of a worker: graphs read them in place, and they are written between two steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.lora.adapter_places import AdapterPlaces, PlacedAdapter
from workers.checkpoints.lora.adapter_weights import AdapterWeights
from workers.engine.adapters.adapter_slots import PutAdapter
from workers.iree.lora.adapter_parameters import TYPES, add_adapters, aligned, largest
from workers.iree.lora.lora_plan import parameter_names
from workers.iree.model.plain_ops import PlainOps
from workers.iree.model.stored_parameters import Stored
from workers.iree.model.tiled_ops import TiledOps
from workers.load_options import LoadOptions


@dataclass(frozen=True, slots=True)
class _Memory:
    """The parameters of one matrix, as graphs read them."""

    stored: Stored
    a: NDArray[Any]
    b: NDArray[Any]
    owners: NDArray[np.int32]


class AdapterStore:
    """Implements `workers.engine.adapters.adapter_slots.AdapterSlots`. The parameter index keeps its memory."""

    def __init__(
        self, index: rt.ParameterIndex, places: AdapterPlaces, weights: Sequence[Stored], ops: TiledOps
    ) -> None:
        """Add the matrices of all places to the parameters of a model's graphs, beside those that it has as
        `weights`."""
        self._places, self._ops = places, ops
        self._memory: dict[str, _Memory] = {}
        stored = {each.name: each for each in weights}
        for stack in places.stacks:
            mine = stored[stack.name]
            outputs, inputs = mine.padded_shape
            shapes = ops.stored_shape(stack.columns, inputs), ops.stored_shape(outputs, stack.columns)
            arrays = [aligned(np.zeros(shape, TYPES[ops.dtype])) for shape in shapes]
            owners = aligned(np.full(stack.columns, -1, np.int32))
            for name, array in zip(parameter_names(stack.name), (*arrays, owners), strict=True):
                index.add_buffer(name, array.reshape(-1).view(np.uint8))
            self._memory[stack.name] = _Memory(mine, arrays[0], arrays[1], owners)

    @property
    def nbytes(self) -> int:
        """Bytes of all places."""
        return sum(each.a.nbytes + each.b.nbytes + each.owners.nbytes for each in self._memory.values())

    def read(self, directory: Path) -> PutAdapter:
        """See `AdapterSlots.read`."""
        adapter = AdapterWeights(directory.name, directory, self._places.max_rank, largest(self._ops.dtype))
        packed = [self._packed(each) for each in self._places.read(adapter, 1)]

        def put(number: int) -> None:
            for name, a, b in packed:
                self._write(name, a, b, number)

        return put

    def _packed(self, placed: PlacedAdapter) -> tuple[str, NDArray[Any], NDArray[Any]]:
        """Return the matrices of an adapter as they are stored."""
        outputs, inputs = self._memory[placed.name].stored.axes or (None, None)
        a, b = (each.astype(TYPES[self._ops.dtype]) for each in (placed.a, placed.b))
        a = a if inputs is None else inputs.pad(a, 1)
        b = b if outputs is None else outputs.pad(b, 0)
        return placed.name, self._ops.store(a), self._ops.store(b)

    def _write(self, name: str, a: NDArray[Any], b: NDArray[Any], number: int) -> None:
        memory, before = self._memory[name], number - 1
        tiles, blocks = a.shape[0], b.shape[1]
        memory.a[before * tiles : number * tiles] = a
        memory.b[:, before * blocks : number * blocks] = b
        columns = len(memory.owners) // self._places.count
        memory.owners[before * columns : number * columns] = number


def open_adapters(
    index: rt.ParameterIndex,
    config: ModelConfig,
    options: LoadOptions,
    weights: Sequence[Stored],
    ops: TiledOps | PlainOps,
) -> tuple[int, AdapterStore | None]:
    """Read the adapters that are loaded with a model into the parameters of its graphs. Returns their bytes, and the
    places of those that are loaded at run time, if there are any. `config` is that of the checkpoint. Raises
    `CheckpointError`."""
    if not options.runtime_loras:
        return add_adapters(index, config, options.lora_modules, options.max_lora_rank, weights, ops), None
    assert isinstance(ops, TiledOps), "checked by the plan"
    count = len(options.lora_modules) + options.runtime_loras
    store = AdapterStore(index, AdapterPlaces(config, count, options.max_lora_rank), weights, ops)
    for number, (_, path) in enumerate(options.lora_modules, 1):
        store.read(path)(number)
    return store.nbytes, store
