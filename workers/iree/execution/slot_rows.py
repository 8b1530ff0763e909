"""The rows of each slot: how many there are, and their copies, reads, writes and resets."""

from collections.abc import Sequence

from workers.engine.runner import (
    Chunk,
    DecodeRow,
    RunnerCapabilities,
    check_chunks,
    check_copy,
    check_read,
    check_rows,
    check_write,
    chunks_of,
)
from workers.engine.slot_states import SlotStates
from workers.iree.execution.slot_buffers import SlotBuffers
from workers.iree.graph_registry import GraphRegistry
from workers.iree.mtp import IreeMtpHead


class SlotRows:
    """Owns the account of the rows of each slot, and changes them in `buffers` between calls of graphs."""

    def __init__(
        self,
        capabilities: RunnerCapabilities,
        buffers: SlotBuffers,
        graphs: GraphRegistry,
        mtp: IreeMtpHead | None,
        ahead: list[int],
    ) -> None:
        """`ahead` are the rows of each slot that `mtp` has filled in its layer."""
        self._capabilities = capabilities
        self._buffers = buffers
        self._graphs = graphs
        self._mtp = mtp
        self._ahead = ahead
        self._known = SlotStates(capabilities)
        self.written = [0] * capabilities.slots
        """The filled rows of each slot. Who calls a graph that writes further ones notes these here."""

    def check_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Raise `ValueError` for chunks that the slots cannot take, and take back the rows that they replace."""
        check_chunks(self._capabilities, self.written.__getitem__, chunks)
        self._known.check_call(self.written, chunks, decode=False)
        self._take_back(chunks)
        self._note_lost(chunks)

    def prefilled(self, chunks: Sequence[Chunk]) -> None:
        """Note that chunks of prompts are computed from now on."""
        for chunk in chunks:
            self._known.prefilled(chunk.slot)

    def check_decode(self, rows: Sequence[DecodeRow]) -> None:
        """Raise `ValueError` for rows that a decode step cannot take, and take back the rows that they replace."""
        check_rows(self._capabilities, self.written, rows)
        if self._buffers.states is not None:
            chunks = chunks_of(rows)
            self._known.check_call(self.written, chunks, decode=True)
            self._take_back(chunks)
            for chunk in chunks:
                # The only row of a slot is written over the state before it.
                self._known.decoded(chunk.slot, len(chunk.tokens) if len(chunk.tokens) > 1 else 0)
        if self._buffers.windows is not None:
            self._note_lost(chunks_of(rows))

    def _take_back(self, chunks: Sequence[Chunk]) -> None:
        """Take the rows back from recurrent states that chunks begin before."""
        for chunk in chunks if self._buffers.states is not None else ():
            if (back := self.written[chunk.slot] - chunk.start) > 0:
                self.copy_prefix(chunk.slot, chunk.slot, chunk.start)
                assert self._known.known(chunk.slot), f"checked: {back} rows can be taken back"

    def _note_lost(self, chunks: Sequence[Chunk]) -> None:
        """Raise `ValueError` for chunks that would read rows that windows have lost, and note what is lost by them."""
        windows = self._buffers.windows
        if windows is None:
            return
        for chunk in chunks:
            windows.check(chunk.slot, self.written[chunk.slot], chunk.start)
        for chunk in chunks:
            if chunk.start == 0 and self.written[chunk.slot]:
                self.copy_prefix(chunk.slot, chunk.slot, 0)
            windows.wrote(chunk.slot, max(self.written[chunk.slot], chunk.start + len(chunk.tokens)))

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `Runner.copy_prefix`."""
        check_copy(self._capabilities, self.written.__getitem__, source, target, length)
        buffers = self._buffers
        written, held = self.written[source], max(self.written[target], self._ahead[target])
        self.written[target] = max(length, held)  # if the copy fails half-way, a reset clears all of it
        if buffers.states is not None:
            back = self._known.copied(source, target, length, written)
            if back is None:
                buffers.states.clear(target)
            else:
                buffers.states.copy(source, target, back)
        rings = buffers.windows is not None and buffers.windows.copied(source, target, written, length)
        if buffers.host_kv is None:
            self._graphs.call("copy", *buffers.kv_views, source, target, length)
        else:
            buffers.host_kv.copy_prefix(source, target, length, written, held, rings=rings)
        self.written[target], self._ahead[target] = length, 0
        if self._mtp is not None:
            self._mtp.rows.copy(source, target, length)

    def read_rows(self, slot: int, start: int, end: int) -> memoryview:
        """See `Runner.read_rows`."""
        check_read(self._capabilities, self.written.__getitem__, slot, start, end)
        assert self._buffers.host_kv is not None, "checked"
        if self._mtp is not None:
            self._mtp.fill()
        return self._buffers.host_kv.read(slot, start, end)

    def write_rows(self, slot: int, start: int, rows: bytes | memoryview) -> None:
        """See `Runner.write_rows`."""
        count = check_write(self._capabilities, self.written.__getitem__, slot, start, len(rows))
        self.written[slot] = start + count  # if the write fails half-way, a reset clears all of it
        assert self._buffers.host_kv is not None, "checked"
        self._known.rows_written(slot)
        if self._buffers.windows is not None:
            self._buffers.windows.rows_written(slot, start + count)
        self._buffers.host_kv.write(slot, start, start + count, rows)
        if self._mtp is not None:
            self._mtp.rows.forget(slot)

    def read_state(self, slot: int, length: int | None = None) -> bytes | memoryview:
        """See `Runner.read_state`."""
        if self._buffers.windows is not None:
            return self._buffers.windows.read(slot, self.written, length)
        back = 0 if length is None else self.written[slot] - length
        self._known.check_read(slot, back)
        assert self._buffers.states is not None, "checked"
        return self._buffers.states.read(slot, back)

    def write_state(self, slot: int, state: bytes | memoryview) -> None:
        """See `Runner.write_state`."""
        if self._buffers.windows is not None:
            self._buffers.windows.write(slot, self.written, state)
            return
        self._known.check_write(slot, len(state))
        assert self._buffers.states is not None, "checked"
        self._buffers.states.write(slot, state)
        self._known.state_written(slot)

    def reset(self, slot: int) -> None:
        """See `Runner.reset`."""
        if not 0 <= slot < self._capabilities.slots:
            raise ValueError(f"slot: {slot} is not one of {self._capabilities.slots}")
        buffers = self._buffers
        if self._mtp is not None:
            self._mtp.rows.forget(slot)
        rows, self.written[slot], self._ahead[slot] = max(self.written[slot], self._ahead[slot]), 0, 0
        self._known.reset(slot)
        if buffers.windows is not None:
            buffers.windows.reset(slot)
        if buffers.states is not None:
            buffers.states.clear(slot)
        if not rows:
            return
        if buffers.host_kv is None:
            self._graphs.call("copy", *buffers.kv_views, slot, slot, 0)
        else:
            buffers.host_kv.forget(slot, rows)
