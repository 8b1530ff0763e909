"""The rows and states of each slot: what may be computed next, and their copies, reads, writes and resets."""

from collections.abc import Sequence

import mlx.core as mx

from workers.checkpoints.checkpoint import ModelConfig
from workers.checkpoints.weight_size import layer_row_bytes
from workers.engine.runner import Chunk, RunnerCapabilities, check_chunks, check_copy, check_read, check_write
from workers.engine.slot_states import SlotStates
from workers.engine.speculation.mtp.head_rows import HeadRows
from workers.engine.states.window_states import WindowStates
from workers.mlx.hybrid.states import RecurrentStates
from workers.mlx.kv import KvCache, RowShape
from workers.precision import KvDtype, level_bits


class SlotMemory:
    """Owns the KV cache, the recurrent states or the account of rings, and what is known of them."""

    def __init__(self, config: ModelConfig, capabilities: RunnerCapabilities, kv_dtype: KvDtype, ring: int) -> None:
        """`ring` is the number of rows that layers with a window keep of a slot; 0 is all."""
        self._capabilities = capabilities
        self._ring = ring
        kind = getattr(mx, capabilities.dtype)
        dtype = mx.int8 if level_bits(kv_dtype) else kind
        self.kv = KvCache(_row_shapes(config, dtype.size, kv_dtype, ring), capabilities.slots, dtype)
        """The rows. After a call that computes further ones, `computed` records their number in `lengths`."""
        self.recurrent = RecurrentStates(config, capabilities.slots, kind, keeps=capabilities.rollback_rows > 0)
        self.windows: WindowStates | None = None
        """The rows that the rings of each slot have; None without rings."""
        if ring:
            self.windows = WindowStates(self.kv, capabilities.slots, ring, capabilities.window_reach)
        self.head_rows: HeadRows[mx.array] | None = None
        """Those of the head for multi-token prediction, which follow the slots."""
        self._states = SlotStates(capabilities)

    @property
    def written(self) -> list[int]:
        """The filled rows of each slot."""
        return self.kv.lengths

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, which must be evaluated after a call."""
        return [*self.kv.arrays, *self.recurrent.arrays]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.kv.nbytes + self.recurrent.nbytes

    def prepare(self, chunks: Sequence[Chunk], *, decode: bool) -> None:
        """Make room for chunks, and take back the rows that they replace. Raises `ValueError` for chunks that the slots
        cannot take."""
        check_chunks(self._capabilities, self.written.__getitem__, chunks)
        self._states.check_call(self.written, chunks, decode=decode)
        if self.windows is not None:
            self._note_lost(self.windows, chunks)
        elif self._capabilities.state_bytes:
            for chunk in chunks:
                if back := self.written[chunk.slot] - chunk.start:
                    self.recurrent.take_back(chunk.slot, back)
            self.recurrent.step(chunks, decode=decode)
        self.kv.reserve({chunk.slot: (chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks})

    def _note_lost(self, windows: WindowStates, chunks: Sequence[Chunk]) -> None:
        """Raise `ValueError` for chunks that would read rows that windows have lost, and note what is lost by them."""
        most = self._ring - self._capabilities.window_reach
        for chunk in chunks:
            if len(chunk.tokens) > most:
                raise ValueError(f"tokens: {len(chunk.tokens)} in a call, a ring has room for {most}")
            windows.check(chunk.slot, self.written[chunk.slot], chunk.start)
        for chunk in chunks:
            if chunk.start == 0:
                windows.reset(chunk.slot)
            windows.wrote(chunk.slot, max(self.written[chunk.slot] if chunk.start else 0, _end(chunk)))

    def computed(self, chunks: Sequence[Chunk], *, decode: bool) -> None:
        """Note that chunks of prompts or of a decode step are computed."""
        for chunk in chunks:
            self.written[chunk.slot] = _end(chunk)
            if decode:
                self._states.decoded(chunk.slot, len(chunk.tokens))
            else:
                self._states.prefilled(chunk.slot)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `Runner.copy_prefix`."""
        check_copy(self._capabilities, self.written.__getitem__, source, target, length)
        written = self.written[source]
        self.kv.copy_prefix(source, target, length)
        if self.windows is not None:
            self.windows.copied(source, target, written, length)
        elif self._capabilities.state_bytes:
            self._copy_state(source, target, length, written)
        if self.head_rows is not None:
            self.head_rows.copy(source, target, length)

    def _copy_state(self, source: int, target: int, length: int, written: int) -> None:
        """Copy the recurrent state, if it goes along with so many of the `written` rows."""
        back = self._states.copied(source, target, length, written)
        if back:
            self.recurrent.take_back(source, back, target)
            self.recurrent.forget(target)
        elif back is not None and source != target:
            self.recurrent.copy(source, target)
        elif not length:
            self.recurrent.reset(target)

    def read_rows(self, slot: int, start: int, end: int) -> memoryview:
        """See `Runner.read_rows`."""
        check_read(self._capabilities, self.written.__getitem__, slot, start, end)
        return self.kv.read(slot, start, end)

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        """See `Runner.write_rows`."""
        count = check_write(self._capabilities, self.written.__getitem__, slot, start, len(rows))
        self.kv.write(slot, count, rows)
        self._states.rows_written(slot)
        if self.windows is not None:
            self.windows.rows_written(slot, start + count)
        if self.head_rows is not None:
            self.head_rows.forget(slot)

    def read_state(self, slot: int, length: int | None = None) -> bytes:
        """See `Runner.read_state`."""
        if self.windows is not None:
            return self.windows.read(slot, self.written, length)
        back = 0 if length is None else self.written[slot] - length
        self._states.check_read(slot, back)
        return self.recurrent.read(slot, back)

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        """See `Runner.write_state`."""
        if self.windows is not None:
            self.windows.write(slot, self.written, state)
            return
        self._states.check_write(slot, len(state))
        self.recurrent.write(slot, state)
        self._states.state_written(slot)

    def reset(self, slot: int) -> None:
        """See `Runner.reset`."""
        self.kv.reset(slot)
        if self.windows is not None:
            self.windows.reset(slot)
        elif self._capabilities.state_bytes:
            self.recurrent.reset(slot)
            self._states.reset(slot)
        if self.head_rows is not None:
            self.head_rows.forget(slot)

    def recover(self) -> None:
        """Empty the slots whose rows or states a failed call has lost."""
        self.kv.recover()
        if not self.recurrent.recover():
            self.kv.reset_all()
            self._states = SlotStates(self._capabilities)
        for slot, rows in enumerate(self.written if self.windows is not None else ()):
            if not rows and self.windows is not None:
                self.windows.reset(slot)


def _end(chunk: Chunk) -> int:
    return chunk.start + len(chunk.tokens)


def _row_shapes(config: ModelConfig, item_bytes: int, kv_dtype: KvDtype, ring: int) -> list[RowShape]:
    """Return the shape of a cache row of each layer that has keys and values, in elements of so many bytes."""
    found = []
    for layer in config.kv_owners:
        heads = config.kv_shape(layer).heads
        keys, values = (size // (heads * item_bytes) for size in layer_row_bytes(config, layer, item_bytes, kv_dtype))
        found.append(RowShape(heads, (keys, values), ring if config.in_ring(layer) else 0))
    return found
