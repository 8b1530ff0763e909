"""The input of graphs whose rows may have adapters: the adapter of each sequence of a step."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import iree.runtime as rt

from workers.iree.device.buffers import Input
from workers.iree.device.device import Device
from workers.iree.lora.lora_plan import ADAPTED


class HasAdapter(Protocol):
    """A chunk, or a row of a decode step."""

    @property
    def adapter(self) -> int:
        """Its adapter, 0 for none."""


class RowAdapters:
    """Writes the adapters of a step for its graph. Owned by the runner."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._inputs: dict[int, Input] = {}
        """By the sequences of the graph."""

    def input(self, batch: int, indices: Iterable[int], rows: Sequence[HasAdapter]) -> rt.HalBufferView:
        """Return the argument for a graph of `batch` sequences with these at these indices."""
        given = self._inputs.get(batch)
        if given is None:
            given = self._inputs[batch] = self._device.input((batch,), "int32")
        given.array[:] = 0
        for index, row in zip(indices, rows, strict=True):
            given.array[index] = row.adapter
        return given.ready()

    def close(self) -> None:
        """Release the inputs."""
        self._inputs.clear()


def kind_for(kind: str, rows: Iterable[HasAdapter]) -> str:
    """Return the kind of the graph for a step of these rows: that for adapters, if one has any."""
    return ADAPTED + kind if any(row.adapter for row in rows) else kind
