"""The recurrent states of all slots, and mlx-lm's recurrent modules over rows of several slots."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Chunk

_BITS = {4: (np.uint32, mx.uint32), 2: (np.uint16, mx.uint16)}

Shapes = list[tuple[tuple[int, ...], mx.Dtype]]


class RecurrentStates:
    """Owns an array [slots, ...] for each part of the state of each layer that has one.

    The parts are those that mlx-lm's modules keep in an `ArraysCache`: the last inputs of a convolution, and for a
    gated delta network or Mamba-2 the matrices of its heads, which are float32. The initial state is zero.
    """

    def __init__(self, config: ModelConfig, slots: int, dtype: mx.Dtype) -> None:
        self._shapes = _shapes(config, dtype)
        self._layers, self._slots = config.state_layers, slots
        self.parts: list[list[mx.array]] = []
        self.reset_all()

    @property
    def slot_bytes(self) -> int:
        """Bytes of the state of one slot."""
        return self._layers * sum(int(np.prod(shape)) * dtype.size for shape, dtype in self._shapes)

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.arrays)

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, which must be evaluated after a write."""
        return [array for parts in self.parts for array in parts]

    def reset_all(self) -> None:
        """Give all slots the initial state."""
        self.parts = [
            [mx.zeros((self._slots, *shape), dtype=dtype) for shape, dtype in self._shapes] for _ in range(self._layers)
        ]

    def reset(self, slot: int) -> None:
        """Give a slot the initial state."""
        for array in self.arrays:
            array[slot] = 0
        mx.eval(self.arrays)

    def copy(self, source: int, target: int) -> None:
        """Make the state of one slot that of another."""
        for array in self.arrays:
            array[target] = array[source]
        mx.eval(self.arrays)

    def read(self, slot: int) -> bytes:
        """Return the bits of the state of a slot."""
        return b"".join(np.array(array[slot].view(_BITS[array.dtype.size][1])).tobytes() for array in self.arrays)

    def write(self, slot: int, state: bytes | memoryview) -> None:
        """Make bits that `read` has returned the state of a slot."""
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

    def __init__(self, parts: list[mx.array], chunks: Sequence[Chunk]) -> None:
        """`parts` of the layer, and the chunks in the order of the rows."""
        self._parts = parts
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
        outputs, first = [], 0
        for count, slots in self._runs:
            given = rows[first : first + count * len(slots)]
            first += given.shape[0]
            indices = mx.array(slots)
            cache = ModuleCache([part[indices] for part in self._parts])
            output = module(given.reshape(len(slots), count, -1), None, cache)
            for number, state in enumerate(cache.states):
                part = self._parts[number]
                part[indices] = state.astype(part.dtype)
                self._parts[number] = part
            outputs.append(output.reshape(given.shape[0], 1, -1))
        return mx.concatenate(outputs) if len(outputs) > 1 else outputs[0]


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
