"""The inputs of a step: runs of rows in a graph, their rotary angles, and the buffers that decode graphs read."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import iree.runtime as rt
import numpy as np
from numpy.typing import NDArray

from workers.engine.embeddings.chunk_rows import ChunkRows
from workers.engine.runner import Chunk, DecodeRow
from workers.iree.device.device import Device


class SlotRun(NamedTuple):
    """Rows of one slot that lie side by side in a graph."""

    slot: int
    tokens: tuple[int, ...]
    start: int
    position: int
    output_index: int
    """The index of the run's last row among the last rows of the call; -1 if it is no chunk's last row."""
    embeddings: ChunkRows | None = None
    positions: tuple[int, ...] | None = None
    """As in `Chunk`, like the embeddings and what follows."""
    axes: NDArray[np.int32] | None = None
    ends: tuple[int, ...] | None = None
    adapter: int = 0

    @property
    def first_position(self) -> int | None:
        """The position of the first row, if those of the others follow one after the other on all axes."""
        if self.positions is not None:
            return None
        if self.axes is None:
            return self.position
        first = int(self.axes[0, 0])
        return first if (self.axes == np.arange(first, first + len(self.tokens))).all() else None


def runs_of(chunk: Chunk, output_index: int, most: int) -> list[SlotRun]:
    """Divide a chunk into runs of `most` rows; the last run has the chunk's last row."""
    runs = []
    for at in range(0, len(chunk.tokens), most):
        part = chunk.part(at, most)
        index = output_index if at + len(part.tokens) == len(chunk.tokens) else -1
        taken = (part.slot, part.tokens, part.start, part.position, index)
        runs.append(SlotRun(*taken, part.embeddings, part.positions, part.axes, part.ends, part.adapter))
    return runs


def attended_ends(runs: Sequence[SlotRun], shape: tuple[int, int]) -> NDArray[np.int32]:
    """Return the cache row before which each row of a graph attends, int32 [sequences, rows] as `shape` says. Raises
    `ValueError` for a run that attends to rows which the call does not compute."""
    ends = np.zeros(shape, np.int32)
    computed: dict[int, int] = {}
    for row, run in enumerate(runs):
        count = len(run.tokens)
        after = run.start + count
        ends[row, :count] = np.arange(run.start + 1, after + 1) if run.ends is None else run.ends
        computed[run.slot] = max(after, computed.get(run.slot, 0))
    for row, run in enumerate(runs):
        if ends[row].max() > computed[run.slot]:
            raise ValueError(f"ends: an image of slot {run.slot} does not fit into one prefill call")
    return ends


def mrope_axes(sections: Sequence[int], angles: int, *, interleaved: bool) -> NDArray[np.intp]:
    """Return the axis of each of M-RoPE's angles: 0 time, 1 row, 2 column. Angles behind the sections are of time.

    `sections` and `interleaved` as in `VisionConfig`. Interleaved, the axes alternate as long as the sections of row
    and column last (transformers' `apply_interleaved_mrope`).
    """
    axes = np.zeros(angles, np.intp)
    starts = np.cumsum([0, *sections])
    for axis in (1, 2):
        if interleaved:
            axes[axis : 3 * sections[axis] : 3] = axis
        else:
            axes[starts[axis] : starts[axis + 1]] = axis
    return axes


FIRST_POSITIONS = 4096
"""Positions whose angles are computed at the start."""


class RopeTable:
    """The cosines and sines of RoPE angles: computed once for the positions of a context, as soon as the first of twice
    as many as before is needed, because a table of them all may take hundreds of megabytes; on demand beyond it."""

    def __init__(
        self,
        frequencies: NDArray[np.float32],
        factors: NDArray[np.float32],
        context: int,
        axes: NDArray[np.intp] | None = None,
    ) -> None:
        """`frequencies` and `factors` as `rope_frequencies` gives them, [angles] each, and for M-RoPE `axes` as
        `mrope_axes` does."""
        self._axes = axes
        self._frequencies = frequencies
        self._factors = factors
        self._context = context
        self._extend(min(context, FIRST_POSITIONS))

    def _extend(self, positions: int) -> None:
        self._cos, self._sin = self._compute(np.arange(positions))
        # A slice of these costs a fraction of one of the arrays.
        self._flat = tuple(table.reshape(-1).data for table in (self._cos, self._sin))

    def _cover(self, position: int) -> bool:
        """Extend the table if necessary. False for a position beyond the context."""
        if len(self._cos) <= position < self._context:
            self._extend(min(self._context, 1 << position.bit_length()))
        return position < len(self._cos)

    def _compute(self, positions: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        angles = positions[..., None].astype(np.float32) * self._frequencies
        return np.cos(angles) * self._factors, np.sin(angles) * self._factors

    @property
    def width(self) -> int:
        """Angles of a position."""
        return len(self._frequencies)

    def of(self, position: int) -> tuple[memoryview, memoryview]:
        """Return float32 [angles] of one position."""
        if self._cover(position):
            cos, sin = self._flat
            start = position * self.width
            return cos[start : start + self.width], sin[start : start + self.width]
        cos_there, sin_there = self._compute(np.array(position))
        return cos_there.data, sin_there.data

    def at(self, positions: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return float32 [..., angles] for positions [...]."""
        if self._cover(int(positions.max())):
            return self._cos.take(positions, axis=0), self._sin.take(positions, axis=0)
        return self._compute(positions)

    def at_axes(self, positions: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return float32 [..., angles] for positions in time, row and column, [3, ...]. Raises `ValueError` for a model
        without M-RoPE."""
        if self._axes is None:
            raise ValueError("axes: the model's positions have one axis")
        cos, sin = self.at(positions[0])
        for axis in (1, 2):
            mine = self._axes == axis
            for whole, other in zip((cos, sin), self.at(positions[axis]), strict=True):
                whole[..., mine] = other[..., mine]
        return cos, sin


class DecodeInputs:
    """The inputs of decode graphs of so many rows, without the cache, and the greedy tokens that the graphs leave.

    They are written and read number by number, without numpy: after a step nothing of Python is in the CPU's caches,
    and each of numpy's operations takes many times as long as a number.
    """

    def __init__(
        self, device: Device, batch: int, angles: RopeTable, spare_row: int, slots: int, *, has_places: bool = False
    ) -> None:
        """`spare_row` is the cache row of padding rows, which are of any of the `slots`. With `has_places` there are
        the places of recurrent states."""
        self._angles = angles
        self._spare_row, self._slots_there = spare_row, slots
        self._width = angles.width
        integers, floats = ((batch, 1), "int32"), ((batch, 1, angles.width), "float32")
        self._inputs = [device.input(*each) for each in (integers, floats, floats, integers, ((batch,), "int32"))]
        flat = [each.array.reshape(-1).data for each in self._inputs]
        self._tokens, self._cos, self._sin, self._kv_rows, self._slots = flat
        self._used: Sequence[int] = range(batch)
        """The rows of the graph that may hold those of the last step."""
        self.places = device.input((2, batch), "int32") if has_places else None
        """The places of the states before and after each row, which follow what stays on the device: int32 [2,
        batch]."""
        greedy = device.input((batch,), "int32") if device.local else None
        self.results = () if greedy is None else (greedy.ready(),)
        """The arguments after the cache: the buffer for greedy tokens, where the host can read it."""
        self._greedy = None if greedy is None else greedy.array.data

    def write(self, output_indices: Sequence[int], rows: Sequence[DecodeRow]) -> list[rt.HalBufferView]:
        """Return the arguments of a call that leaves these rows' results at these indices. Other rows are padding."""
        for index in self._used:
            self._tokens[index], self._kv_rows[index], self._slots[index] = (
                0,
                self._spare_row,
                index % self._slots_there,
            )
        self._used = output_indices
        width = self._width
        for index, row in zip(output_indices, rows, strict=True):
            self._tokens[index], self._kv_rows[index], self._slots[index] = row.token, row.start, row.slot
            at = index * width
            self._cos[at : at + width], self._sin[at : at + width] = self._angles.of(row.position)
        return [each.ready() for each in self._inputs]

    @property
    def greedy(self) -> list[int] | None:
        """The greedy tokens of the last call, of all rows; None if they are not left here."""
        return None if self._greedy is None else self._greedy.tolist()
