"""Decides where a sequence of a model with a state can start, and where its snapshots are taken. Pure.

Rows can be reused up to any length, a state only after the tokens that it was read for. So a prefix ends where there is
a snapshot, or where the rows of a slot end: the slot itself has the state after these. Where layers with a window keep
their last rows alone, which are their state, it has those of some earlier lengths as well.
"""

from workers.engine.prefix_match import CachedRows, PrefixPolicy, common_prefix
from workers.engine.runner import RunnerCapabilities
from workers.engine.sequence import EngineSequence
from workers.engine.states.lost_rows import LostRows
from workers.engine.states.sequence_digests import SequenceDigests
from workers.engine.states.snapshot_store import OVERHEAD_BYTES, Snapshot, SnapshotStore

SHARE_OF_PROMPT = 4
"""The snapshots of one prompt, at regular lengths, take one part in so many of the store at most."""


class PrefixStates:
    """Used by the scheduler alone. Snapshots are taken at regular lengths, which prompts with a common prefix share, at
    the end of a prompt, and where others that wait have a prefix in common with it."""

    def __init__(
        self, capabilities: RunnerCapabilities, store: SnapshotStore, prefixes: PrefixPolicy, block_rows: int = 0
    ) -> None:
        """`block_rows` are those of a block of the prefix tier, which saves snapshots; 0 without one."""
        self.store = store
        self._windows = capabilities.window_rows > 0
        self._lost = LostRows(capabilities.slots, capabilities.window_rows, capabilities.window_reach)
        self._block = block_rows
        self._exact = capabilities.exact_rows
        self._spacing = capabilities.prefill_chunks[-1]
        self._enabled = prefixes.enabled and store.fits(capabilities.state_bytes)
        self._least = prefixes.min_tokens
        one = capabilities.state_bytes + OVERHEAD_BYTES
        self._most_regular = max(1, store.max_bytes // one // SHARE_OF_PROMPT)

    def usable(self, sequence: EngineSequence, slot: int, source: CachedRows, length: int) -> int:
        """Return how many of `length` rows of `source`, which are in `slot`, a sequence can start with."""
        if self._has_state(slot, source.rows, length):
            return length
        found = self.store.nearest(sequence.request.tenant, self._digests(sequence), length)
        return 0 if found is None else found.length

    def _has_state(self, slot: int, rows: int, length: int) -> bool:
        """Return whether a slot with so many `rows` has the state after the first `length` of them."""
        return length == rows or (self._windows and self._lost.usable(slot, rows, length))

    def start(self, sequence: EngineSequence, source: int, length: int, rows: int) -> Snapshot | None:
        """Return the snapshot with which a sequence starts behind `length` rows of the slot `source`, which has so many
        `rows`; None if that has the state itself."""
        sequence.snapshot = None
        has_state = length == 0 or self._has_state(source, rows, length)
        self._lost.began(sequence.slot, source, rows, length)
        if not has_state:
            self.restored(sequence.slot, length)
            found = self.store.nearest(sequence.request.tenant, self._digests(sequence), length)
            assert found is not None, "`usable` has found it in this step"
            self.store.hit(found)
            sequence.snapshot = found
        if self._block and length:
            within = self.store.within(sequence.request.tenant, self._digests(sequence), length)
            sequence.cached.states = [each for each in within if each.length % self._block == 0]
        return sequence.snapshot

    def restored(self, slot: int, rows: int) -> None:
        """Record that the state after its `rows` is written to a slot, from a snapshot or from elsewhere."""
        self._lost.restored(slot, rows)

    def chunk_length(self, sequence: EngineSequence, start: int, length: int) -> int:
        """Return the tokens of a chunk of up to `length`, which ends where a snapshot is to be taken."""
        if not self._enabled:
            return length
        step = self._step(sequence)
        others = (*sequence.shared_ends, *self._tier_ends(sequence))
        ends = [(start // step + 1) * step, *(end for end in others if end > start)]
        return min(length, min(ends) - start)

    def _tier_ends(self, sequence: EngineSequence) -> tuple[int, ...]:
        """Return the lengths within a prompt after which the prefix tier wants the state: at the last end of a block
        that is before its last token, unless a regular one is nearly as long, and of those that are pinned."""
        if not self._block or not self._enabled:
            return ()
        block, step, longest = self._block, self._step(sequence), sequence.prefill_length - 1
        last = longest // block * block
        regular = last // step * step if step % block == 0 else 0
        pinned = (min(pin.rows, longest) // block * block for pin in sequence.request.pins)
        return (*((last,) if last - regular >= self._least else ()), *pinned)

    def wants(self, sequence: EngineSequence) -> bool:
        """Return whether to take a snapshot after the rows that a sequence has now, within its prompt or at its end: of
        as many as are reused at all."""
        rows = sequence.cached.rows
        if not self._enabled or rows < self._least:
            return False
        last = not self._exact and len(sequence.chunk_ends) > 1 and rows == sequence.chunk_ends[-2]
        regular = rows % self._step(sequence) == 0
        shared = rows in sequence.shared_ends or rows in self._tier_ends(sequence)
        if not (regular or last or shared or rows == sequence.prefill_length):
            return False
        return self._lacks(sequence)

    def wants_decoded(self, sequence: EngineSequence) -> bool:
        """Return whether the prefix tier wants the state after the rows that a decoding sequence has now: at ends of
        blocks, about as far apart as the regular snapshots of prompts."""
        rows = sequence.cached.rows
        if not self._block or rows % self._block or not self._enabled:
            return False
        before = sequence.cached.states[-1].length if sequence.cached.states else sequence.reused or 0
        return rows - before >= self._step(sequence) and self._lacks(sequence)

    def _lacks(self, sequence: EngineSequence) -> bool:
        rows = sequence.cached.rows
        digest = self._digests(sequence).of(rows)
        return digest is not None and not self.store.holds(digest)

    def taken(self, sequence: EngineSequence, state: bytes) -> None:
        """Hold the state after the rows that a sequence has now."""
        rows = sequence.cached.rows
        snapshot = self.store.add(sequence.request.tenant, self._digests(sequence), rows, state)
        if snapshot is not None:
            sequence.unproven.append(snapshot)
            if self._block and rows % self._block == 0:
                sequence.cached.states.append(snapshot)

    def gains_by_waiting(
        self, sequence: EngineSequence, start: int, other: EngineSequence, other_start: int, least: int
    ) -> bool:
        """Return whether a sequence that could start at row `start` could reuse `least` rows more once another one, at
        `other_start` now, has computed what they have in common. Unless a regular snapshot is nearly as long, one is
        taken there then."""
        most = min(sequence.prefill_length - 1, other.prefill_length)
        shared = common_prefix(sequence.tokens, other.tokens, most)
        if self._windows and self._lost.keeps(other.prefill_length, shared):  # its slot has the state
            return shared >= start + least
        if not self._enabled or shared < start + least or other_start >= shared:
            return False
        regular = shared // self._step(other) * self._step(other)
        near = regular > max(other_start, start + least - 1, shared - least)
        if not near and shared < other.prefill_length:
            other.shared_ends.add(shared)
        return True

    def proven(self, sequence: EngineSequence) -> None:
        """Note that a token was sampled after all snapshots of a sequence."""
        for snapshot in sequence.unproven:
            snapshot.proven = True
        sequence.unproven.clear()

    def discard_suspects(self, sequence: EngineSequence, *, non_finite: bool) -> None:
        """Drop the snapshots that may be the cause of the failure of a sequence, or corrupted like its rows: the one
        that it has started with, its own, and with `non_finite` logits all unproven ones of its tenant."""
        for snapshot in sequence.unproven:
            self.store.discard(snapshot)
        sequence.unproven.clear()
        if sequence.snapshot is not None:
            self.store.discard(sequence.snapshot)
            sequence.snapshot = None
        if non_finite:
            tenant = sequence.request.tenant
            self.store.discard_where(lambda each: each.tenant == tenant and not each.proven)

    def _digests(self, sequence: EngineSequence) -> SequenceDigests:
        if sequence.digests is None:
            ends = None if self._exact else sequence.chunk_ends
            sequence.digests = SequenceDigests(sequence.request.tenant, sequence.tokens, ends)
        return sequence.digests

    def _step(self, sequence: EngineSequence) -> int:
        """Return the distance of the regular snapshots of a prompt: by its length alone, and a multiple of that of
        shorter ones."""
        step = self._spacing
        while sequence.prefill_length // step > self._most_regular:
            step *= 2
        return step
