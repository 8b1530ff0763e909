"""Recurrent states in the prefix tier: the state after a block is a further block that follows it.

The bytes of a state are those of a snapshot, which was taken at the end of a block (`PrefixStates`). Of each sequence
the longest one is saved, after the blocks before it; a prefix is restored up to the longest block with a state.
"""

from collections.abc import Sequence

from protocol.commands import client_of
from workers.engine.prefix_match import CachedRows
from workers.engine.runner import Runner
from workers.engine.sequence import EngineSequence
from workers.engine.states.snapshot_store import Snapshot
from workers.prefix_store.block import RowBlock
from workers.prefix_store.store import PrefixStore


class StoredStates:
    """Used by the prefix tier alone, for a model with a recurrent state. `cached.blocks` has the names of all blocks
    that are asked for."""

    def __init__(self, store: PrefixStore, runner: Runner, block_rows: int) -> None:
        self._store = store
        self._runner = runner
        self._rows = block_rows
        self.state_bytes = runner.capabilities.state_bytes
        """Bytes of one state."""

    def longest(self, blocks: Sequence[RowBlock], most: int) -> int:
        """Return the number of first blocks, at most `most`, after which the store has the state; 0 if it has none."""
        return next((count for count in range(most, 0, -1) if self._store.holds(blocks[count - 1].state)), 0)

    def restore(self, sequence: EngineSequence) -> int:
        """Write the state after the rows of a sequence, which came from the store. Returns the number of rows that it
        keeps: fewer where a state cannot be read, and 0 without any. Raises what the runner raises."""
        cached = sequence.cached
        for count in range(cached.rows // self._rows, 0, -1):
            block = cached.blocks[count - 1].state
            state = self._store.read(block, self.state_bytes) if self._store.holds(block) else None
            if state is not None:
                self._truncate(sequence, count * self._rows)
                self._runner.write_state(sequence.slot, state)
                cached.has_state = True
                self._store.touch([block])
                return count * self._rows
        self._truncate(sequence, 0)
        cached.has_state = True  # the initial one
        return 0

    def _truncate(self, sequence: EngineSequence, rows: int) -> None:
        if rows < sequence.cached.rows or not rows:
            self._runner.copy_prefix(sequence.slot, sequence.slot, rows)

    def unsaved(self, cached: CachedRows, most: int) -> Snapshot | None:
        """Return the longest state of a sequence after at most `most` saved blocks; None if the store has it."""
        for snapshot in reversed(cached.states):
            if snapshot.length <= cached.saved_state:
                return None
            if snapshot.length <= most * self._rows and snapshot.proven and snapshot.state:
                if not self._store.holds(self._block(cached, snapshot)):
                    return snapshot
                cached.saved_state = snapshot.length
                return None
        return None

    def save(self, cached: CachedRows, snapshot: Snapshot) -> None:
        """Save what `unsaved` has returned, unless the store is so small that it has lost the block before. There is
        room for it."""
        cached.saved_state = snapshot.length
        if self._store.holds(cached.blocks[snapshot.length // self._rows - 1]):
            self._store.offer(self._block(cached, snapshot), snapshot.state)

    def pin(self, cached: CachedRows, count: int, seconds: float) -> None:
        """Keep the longest state within the first blocks of a sequence that the store has."""
        if length := self.longest(cached.blocks, count):
            self._store.pin(client_of(cached.tenant), [cached.blocks[length - 1].state], self.state_bytes, seconds)

    def discard(self, blocks: Sequence[RowBlock]) -> None:
        """Drop the states after all these blocks."""
        for block in blocks:
            if self._store.holds(block.state):
                self._store.discard(block.state)

    def _block(self, cached: CachedRows, snapshot: Snapshot) -> RowBlock:
        return cached.blocks[snapshot.length // self._rows - 1].state
