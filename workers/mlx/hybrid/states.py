"""The recurrent states of all slots, and mlx-lm's recurrent modules over rows of several slots."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Chunk

_BITS = {4: (np.uint32, mx.uint32), 2: (np.uint16, mx.uint16)}

Shapes = list[tuple[tuple[int, ...], mx.Dtype]]


@dataclass(frozen=True, slots=True)
class _StateBefore:
    """The state of a layer before a row, in arrays with those of other slots."""

    parts: list[mx.array]
    place: int


class RecurrentStates:
    """Owns an array [slots, ...] for each part of the state of each layer that has one.

    The parts are those that mlx-lm's modules keep in an `ArraysCache`: the last inputs of a convolution, and for a
    gated delta network or Mamba-2 the matrices of its heads, which are float32. The initial state is zero.

    With `keeps`, the states before the rows of the last decode step of each slot are kept, so that these rows can be
    taken back.
    """

    def __init__(self, config: ModelConfig, slots: int, dtype: mx.Dtype, *, keeps: bool = False) -> None:
        self._shapes = _shapes(config, dtype)
        self._layers, self._slots = config.state_layers, slots
        self._keeps = keeps
        self._before: list[list[list[_StateBefore]]] = [[] for _ in range(slots)]
        """The state of each slot, row of its last decode step, and layer."""
        self.parts: list[list[mx.array]] = []
        self.reset_all()

    @property
    def slot_bytes(self) -> int:
        """Bytes of the state of one slot."""
        return self._layers * sum(int(np.prod(shape)) * dtype.size for shape, dtype in self._shapes)

    @property
    def nbytes(self) -> int:
        kept = {id(part): part for rows in self._before for row in rows for each in row for part in each.parts}
        return sum(int(array.nbytes) for array in [*self.arrays, *kept.values()])

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, which must be evaluated after a write."""
        return [array for parts in self.parts for array in parts]

    def step(self, chunks: Sequence[Chunk], *, decode: bool) -> None:
        """Prepare for a call that computes chunks: the rows of their slots can be taken back no more, and those of a
        `decode` step will be."""
        for chunk in chunks:
            rows = len(chunk.tokens) if decode and self._keeps else 0
            self._before[chunk.slot] = [[] for _ in range(rows)]

    def keep(self, slot: int, row: int, parts: list[mx.array], place: int) -> None:
        """Keep the state of the next layer before a row of a decode step, which is at a place of `parts`."""
        if self._before[slot]:
            self._before[slot][row].append(_StateBefore(parts, place))

    def take_back(self, slot: int, rows: int, target: int | None = None) -> None:
        """Make the state before the last `rows` rows of a slot that of a target, or of the slot."""
        target = slot if target is None else target
        for layer, before in enumerate(self._before[slot][len(self._before[slot]) - rows]):
            for part, kept in zip(self.parts[layer], before.parts, strict=True):
                part[target] = kept[before.place].astype(part.dtype)
        mx.eval(self.arrays)

    def forget(self, slot: int) -> None:
        """Keep no states before rows of a slot."""
        self._before[slot] = []

    def reset_all(self) -> None:
        """Give all slots the initial state."""
        self._before = [[] for _ in range(self._slots)]
        self.parts = [
            [mx.zeros((self._slots, *shape), dtype=dtype) for shape, dtype in self._shapes] for _ in range(self._layers)
        ]

    def reset(self, slot: int) -> None:
        """Give a slot the initial state."""
        self._before[slot] = []
        for array in self.arrays:
            array[slot] = 0
        mx.eval(self.arrays)

    def copy(self, source: int, target: int) -> None:
        """Make the state of one slot that of another."""
        self._before[target] = []
        for array in self.arrays:
            array[target] = array[source]
        mx.eval(self.arrays)

    def read(self, slot: int, back: int = 0) -> bytes:
        """Return the bits of the state of a slot, or of that before its last rows."""
        arrays = [array[slot] for array in self.arrays]
        if back:
            row = self._before[slot][len(self._before[slot]) - back]
            kept = [part[before.place] for before in row for part in before.parts]
            arrays = [part.astype(array.dtype) for part, array in zip(kept, arrays, strict=True)]
        return b"".join(np.array(array.view(_BITS[array.dtype.size][1])).tobytes() for array in arrays)

    def write(self, slot: int, state: bytes | memoryview) -> None:
        """Make bits that `read` has returned the state of a slot."""
        self._before[slot] = []
        at = 0
        for array in self.arrays:
            size = array.nbytes // self._slots
            bits = np.frombuffer(state[at : at + size], _BITS[array.dtype.size][0]).reshape(array.shape[1:])
            array[slot] = mx.array(bits).view(array.dtype)
            at += size
        mx.eval(self.arrays)

    def recover(self) -> bool:
        """Return True if the states can be evaluated after a call that failed; otherwise all are lost, and initial."""
        if not self.arrays:
            return True
        try:
            mx.eval(self.arrays)
        except (RuntimeError, ValueError, MemoryError):  # what MLX raises; the caller raises what came first
            self.reset_all()
            return False
        return True


class StateCache:
    """The cache that a recurrent layer uses during one forward over the rows of several slots, [rows, 1, hidden]."""

    def __init__(self, states: RecurrentStates, layer: int, chunks: Sequence[Chunk], *, decode: bool = False) -> None:
        """`layer` is the place of the layer among those with a state. The chunks are in the order of the rows; in a
        `decode` step the rows of each are computed one after the other."""
        self._states = states
        self._parts = states.parts[layer]
        self._decode = decode
        self._slots = [chunk.slot for chunk in chunks]
        self._counts = [len(chunk.tokens) for chunk in chunks]
        self._runs: list[tuple[int, list[int]]] = []
        """The rows of each call of the module and their slots: a chunk of one slot, or one row of each of several."""
        for chunk in chunks:
            count = len(chunk.tokens)
            if count == 1 and self._runs and self._runs[-1][0] == 1:
                self._runs[-1][1].append(chunk.slot)
            else:
                self._runs.append((count, [chunk.slot]))

    def make_mask(self, *_: object, **__: object) -> None:
        """Return no mask: a call has no padding."""
        return

    def mix(self, module: nn.Module, rows: mx.array) -> mx.array:
        """Call mlx-lm's module for each run of rows, with the states of their slots."""
        if self._decode and max(self._counts) > 1:
            return self._mix_drafted(module, rows)
        outputs, first = [], 0
        for count, slots in self._runs:
            given = rows[first : first + count * len(slots)]
            first += given.shape[0]
            outputs.append(self._call(module, given, slots, count, 0))
        return mx.concatenate(outputs) if len(outputs) > 1 else outputs[0]

    def _mix_drafted(self, module: nn.Module, rows: mx.array) -> mx.array:
        """Compute the first row of each slot, then the second ones, and so on."""
        firsts = list(accumulate(self._counts, initial=0))
        outputs, order = [], []
        for row in range(max(self._counts)):
            chosen = [at for at, count in enumerate(self._counts) if count > row]
            places = [firsts[at] + row for at in chosen]
            slots = [self._slots[at] for at in chosen]
            outputs.append(self._call(module, rows[mx.array(places)], slots, 1, row))
            order += places
        back = [0] * len(order)
        for at, place in enumerate(order):
            back[place] = at
        return mx.concatenate(outputs)[mx.array(back)]

    def _call(self, module: nn.Module, given: mx.array, slots: list[int], count: int, row: int) -> mx.array:
        """Call the module for `count` rows of each slot, of which the first one is a `row` of the step."""
        indices = mx.array(slots)
        before = [part[indices] for part in self._parts]
        for place, slot in enumerate(slots):
            self._states.keep(slot, row, before, place)
        cache = ModuleCache(list(before))
        output: mx.array = module(given.reshape(len(slots), count, -1), None, cache)
        for number, state in enumerate(cache.states):
            part = self._parts[number]
            part[indices] = state.astype(part.dtype)
            self._parts[number] = part
        return output.reshape(given.shape[0], 1, -1)


class ModuleCache:
    """The part of an `ArraysCache` that a module of mlx-lm needs in a call without padding."""

    lengths = None

    def __init__(self, states: list[mx.array]) -> None:
        self.states = states

    def __getitem__(self, index: int) -> mx.array:
        return self.states[index]

    def __setitem__(self, index: int, state: mx.array) -> None:
        self.states[index] = state

    def advance(self, count: int) -> None:
        """There are no lengths to count."""


class SlotMixer(nn.Module):  # type: ignore[misc]
    """A recurrent module of mlx-lm, over rows of several slots."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __call__(self, x: mx.array, mask: Any = None, cache: StateCache | None = None) -> mx.array:
        assert cache is not None  # the runner always gives one
        return cache.mix(self.module, x)


def _shapes(config: ModelConfig, dtype: mx.Dtype) -> Shapes:
    """The parts of the state of a layer, for one slot. A model has recurrent layers of one kind."""
    if (convolution := config.convolution) is not None:
        return [((convolution.taps - 1, convolution.channels), dtype)]
    if (delta := config.delta) is not None:
        matrices = (delta.value_heads, delta.value_dim, delta.key_dim)
        return [((delta.taps - 1, delta.channels), dtype), (matrices, mx.float32)]
    if (mamba := config.mamba) is not None:
        return [
            ((mamba.taps - 1, mamba.channels), dtype),
            ((mamba.heads, mamba.head_dim, mamba.state), mx.float32),
        ]
    return []
