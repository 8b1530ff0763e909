"""Reads cache rows of running sequences for other workers, and takes rows that other workers have computed.

Rows that were taken are retained like those of an ended sequence of their tenant: the sequence that is to continue with
them finds them as it finds any prefix, by its tokens; rows of images by their numbers, which are made of a digest of
pixels, preprocessing and checkpoint, so that the other worker has the same ones. A transfer that breaks off leaves a
shorter prefix and nothing to clean up, and rows that are missing are recomputed. The recurrent state of a model that
has one follows in parts, and is that after the last row of the transfer; without it no sequence takes the rows. So they
are freed when a part of the transfer is refused, as is one without rows, which the gateway sends when the source is
lost.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

import structlog

from protocol.bounds import MAX_ROWS_BYTES
from protocol.commands import ReadRows, WriteRows
from workers.engine.kv_slots import SlotTable
from workers.engine.prefix_match import CachedRows, PrefixPolicy
from workers.engine.runner import Runner
from workers.engine.sequence import EngineSequence
from workers.engine.slot_reset import NO_STREAM, SlotResets
from workers.engine.states.slot_snapshots import SlotSnapshots

STATES_READ = 4
"""Recurrent states that are kept for transfers which have read a part of them. The oldest one gives way."""


@dataclass(frozen=True, slots=True)
class RowsRead:
    """The answer to a `ReadRows`."""

    asked: ReadRows
    held: int = 0
    """Rows that the sequence has; 0 if there is no such sequence."""
    tokens: tuple[int, ...] = ()
    rows: bytes | memoryview = field(default=b"", repr=False)
    state: int = 0
    """Bytes of the recurrent state; 0 if the model has none."""


@dataclass(frozen=True, slots=True)
class RowsTaken:
    """The answer to a `WriteRows`."""

    query: int
    rows: int = 0
    """Rows of the transfer that are held; 0 if these were not taken."""
    text: str = ""
    """Why not."""


@dataclass(slots=True)
class _Incoming:
    """Rows that were taken so far."""

    slot: int
    tokens: list[int]
    cached: CachedRows
    """The rows that are retained in the slot, as many as `tokens`."""
    state: bytearray = field(default_factory=bytearray)
    """The first bytes of the recurrent state."""
    state_rows: int = 0
    """The rows that this state follows; 0 before its first part."""


RowsAnswer = RowsRead | RowsTaken


class RowsRefused(Exception):
    """Raised within the exchange for rows that are not taken."""


class RowExchange:
    """Used by the engine's thread, between two steps."""

    def __init__(
        self, runner: Runner, slots: SlotTable, resets: SlotResets, prefixes: PrefixPolicy, snapshots: SlotSnapshots
    ) -> None:
        self._runner = runner
        self._snapshots = snapshots
        self._slots = slots
        self._resets = resets
        self._prefixes = prefixes
        self._capabilities = capabilities = runner.capabilities
        able = prefixes.enabled and capabilities.exact_rows and 0 < capabilities.row_bytes <= MAX_ROWS_BYTES
        self.rows_format = capabilities.rows_format if able else ""
        """The format of rows that can be read and taken; empty if they cannot. Without exact rows, a sequence could
        reuse its prompt alone."""
        self._states: OrderedDict[int, tuple[int, int, bytes]] = OrderedDict()
        """The states of which transfers have read a part, each with its stream and the rows that it follows."""
        self._transfers: dict[int, _Incoming] = {}
        """Those whose rows are still retained, hence at most one for each slot."""
        self._log = structlog.get_logger()

    def read(self, asked: ReadRows, sequence: EngineSequence | None) -> RowsRead:
        """Return rows of a running sequence, or none if it has none there."""
        if not self.rows_format or sequence is None or sequence.slot < 0:
            return RowsRead(asked)
        if sequence.request.embeddings is not None:  # no digest by which another worker could find them
            return RowsRead(asked)
        if sequence.kept is not None:  # its rows are not those of its tokens alone
            return RowsRead(asked)
        if asked.state:
            return self._read_state(asked, sequence)
        held, start = sequence.cached.rows, asked.start
        end = min(start + asked.most, held, start + MAX_ROWS_BYTES // self._capabilities.row_bytes)
        if end <= start:
            return RowsRead(asked, held, state=self._capabilities.state_bytes)
        try:
            rows = self._runner.read_rows(sequence.slot, start, end)
        except Exception as error:  # noqa: BLE001 - any error of a device: the sequence itself is not concerned
            self._log.error("rows_not_read", stream=asked.stream, slot=sequence.slot, exc_info=error)
            return RowsRead(asked)
        tokens = tuple(sequence.tokens[start:end])
        return RowsRead(asked, held, tokens, rows, self._capabilities.state_bytes)

    def _read_state(self, asked: ReadRows, sequence: EngineSequence) -> RowsRead:
        """Return a part of the recurrent state after the rows that a sequence had when the first part was read."""
        size = self._capabilities.state_bytes
        if not asked.start and size and sequence.cached.rows and sequence.cached.has_state:
            if (state := self._snapshots.read(sequence)) is not None:
                self._states[asked.transfer] = asked.stream, sequence.cached.rows, state
            while len(self._states) > STATES_READ:
                self._states.popitem(last=False)
        stream, held, state = self._states.get(asked.transfer, (-1, 0, b""))
        if stream != asked.stream:
            return RowsRead(asked)
        end = asked.start + min(asked.most, MAX_ROWS_BYTES)
        if end >= size:
            del self._states[asked.transfer]
        return RowsRead(asked, held, rows=state[asked.start : end], state=size)

    def forget(self, stream: int) -> None:
        """Drop the states of a sequence that has ended, or begins anew: their transfers break off."""
        for transfer in [number for number, (of, _, _) in self._states.items() if of == stream]:
            del self._states[transfer]

    def write(self, given: WriteRows, *, queued: int) -> RowsTaken:
        """Append rows to those of a transfer. They are not taken if the running sequences leave no room, or no
        slot beside the `queued` ones."""
        self._forget_evicted()
        try:
            return RowsTaken(given.query, self._write_state(given) if given.state else self._write(given, queued))
        except RowsRefused as refusal:
            self._break_off(given.transfer)
            return RowsTaken(given.query, text=str(refusal))

    def _break_off(self, number: int) -> None:
        """Take nothing more of a transfer. Rows whose state is missing are of no use, and leave room."""
        transfer = self._transfers.pop(number, None)
        if transfer is None or transfer.cached.has_state:
            return
        if self._slots.retained_rows(transfer.slot) is transfer.cached:
            self._slots.evict(transfer.slot)
            self._resets.reset_dirty()

    def _forget_evicted(self) -> None:
        retained = self._slots.retained_rows
        self._transfers = {
            number: each for number, each in self._transfers.items() if retained(each.slot) is each.cached
        }

    def _write(self, given: WriteRows, queued: int) -> int:
        transfer, count, start = self._transfers.get(given.transfer), len(given.tokens), given.start
        if not self.rows_format:
            raise RowsRefused("this worker takes no rows of others")
        if not count or len(given.rows) != count * self._capabilities.row_bytes:
            raise RowsRefused(f"{len(given.rows)} bytes are not the rows of {count} tokens")
        if start + count > self._capabilities.context:
            raise RowsRefused(f"rows {start} to {start + count} are over the context")
        if not start and self._slots.available <= queued:
            raise RowsRefused(f"no slot is left beside the {queued} sequences that wait")
        held = 0 if transfer is None else transfer.cached.rows
        if start != held or (transfer is not None and transfer.cached.tenant != given.tenant):
            raise RowsRefused(f"row {start} does not follow on the {held} rows that are held")
        self._make_room(count, transfer)
        if transfer is None:
            transfer = self._begin(given)
        elif not self._slots.take_over(transfer.slot, NO_STREAM, start + count):
            raise RowsRefused("there is no room")
        self._append(transfer, given)
        self._transfers[given.transfer] = transfer
        return transfer.cached.rows

    def _begin(self, given: WriteRows) -> _Incoming:
        slot = self._slots.take(NO_STREAM, len(given.tokens))
        if slot is None:
            raise RowsRefused("no slot is free")
        tokens: list[int] = []
        has_state = not self._capabilities.state_bytes
        return _Incoming(slot, tokens, CachedRows(given.tenant, tokens, has_state=has_state))

    def _append(self, transfer: _Incoming, given: WriteRows) -> None:
        """Write rows to the slot of a transfer, which is held, and retain it again."""
        slot, count = transfer.slot, len(given.tokens)
        try:
            self._runner.write_rows(slot, given.start, given.rows)
        except Exception as error:
            self._log.error("rows_not_written", slot=slot, exc_info=error)
            self._slots.release(slot)
            self._resets.reset_dirty()
            raise RowsRefused(f"the rows could not be written: {type(error).__name__}") from error
        transfer.tokens += given.tokens
        transfer.cached.rows += count
        self._slots.add_rows(slot, transfer.cached.rows)
        self._slots.retain(slot, transfer.cached)
        transfer.cached.has_state = not self._capabilities.state_bytes
        self._complete(transfer)

    def _write_state(self, given: WriteRows) -> int:
        """Take a part of the recurrent state after rows that are held, or are going to follow."""
        transfer, size = self._transfers.get(given.transfer), self._capabilities.state_bytes
        if transfer is None or transfer.cached.tenant != given.tenant:
            raise RowsRefused("a recurrent state of rows that are not held")
        if not given.start:
            transfer.state, transfer.state_rows = bytearray(), given.state
        if given.state != transfer.state_rows or given.start != len(transfer.state):
            raise RowsRefused(f"byte {given.start} does not follow on the {len(transfer.state)} that are held")
        if given.tokens or not given.rows or given.start + len(given.rows) > size:
            raise RowsRefused(f"{len(given.rows)} bytes from {given.start} on, a recurrent state has {size}")
        transfer.state += given.rows
        self._complete(transfer)
        return given.state

    def _complete(self, transfer: _Incoming) -> None:
        """Write the recurrent state once all of it and of the rows before it are held."""
        cached, size = transfer.cached, self._capabilities.state_bytes
        if not size or len(transfer.state) < size or cached.rows < transfer.state_rows:
            return
        slot, state = transfer.slot, bytes(transfer.state)
        transfer.state = bytearray()
        try:
            if cached.rows > transfer.state_rows:
                raise RowsRefused(f"{cached.rows} rows, and the state after {transfer.state_rows}")
            self._snapshots.write(slot, cached.rows, state)
        except Exception as error:
            self._log.error("rows_not_written", slot=slot, exc_info=error)
            self._slots.evict(slot)
            self._resets.reset_dirty()
            raise RowsRefused(f"the state could not be written: {type(error).__name__}") from error
        cached.has_state = True

    def _make_room(self, count: int, transfer: _Incoming | None) -> None:
        """Evict the least recently used rows of others until `count` more can be retained. Raises `RowsRefused`."""
        slots, most = self._slots, self._prefixes.max_rows

        def lacks() -> bool:
            over = most is not None and slots.retained_tokens + count > most
            return over or slots.free_rows < count or (transfer is None and not slots.free)

        others = [slot for slot, _ in slots.retained() if transfer is None or slot != transfer.slot]
        while lacks() and others:
            slots.evict(others.pop(0))
            self._resets.reset_dirty()
        if lacks():
            raise RowsRefused("there is no room")
