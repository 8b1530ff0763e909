"""Allocates slots to sequences, with reuse of cached prefixes. Pure.

The rows of an ended sequence are retained in its slot until the slot or the room is needed. A new sequence that shares
a prefix (`workers.engine.prefix_match`) takes such a slot over, or copies rows from any slot of its tenant.
"""

from collections.abc import Iterable, Iterator, Sequence

from workers.engine.kv_slots import SlotTable
from workers.engine.prefix_match import CachedRows, PrefixPolicy, common_prefix, reusable
from workers.engine.sequence import EngineSequence, PrefixCopy
from workers.engine.states.prefix_states import PrefixStates

RESERVED_ROWS = 512
"""Rows that are reserved beyond the tokens of a sequence, and by which its reservation grows. A request with at most so
many `max_tokens` has all its rows when it starts."""


class SlotAllocator:
    """Allocates, retains and evicts slots. With `exact` rows a prefix may end anywhere, otherwise at chunk ends
    only."""

    def __init__(
        self,
        slots: SlotTable,
        prefixes: PrefixPolicy,
        *,
        exact: bool,
        reserved_rows: int,
        states: PrefixStates | None = None,
        bidirectional: bool = False,
    ) -> None:
        """`reserved_rows` as `RESERVED_ROWS`; `states` of a model with a state; `bidirectional` as in
        `RunnerCapabilities.bidirectional_images`."""
        self._slots = slots
        self._reserved_rows = reserved_rows
        self._prefixes = prefixes
        self._exact = exact
        self._states = states
        self._bidirectional = bidirectional

    def need(self, sequence: EngineSequence) -> int:
        """Return the rows that a sequence reserves when it gets a slot."""
        return min(sequence.max_length, len(sequence.tokens) + self._reserved_rows)

    def allocate(self, sequence: EngineSequence) -> bool:
        """Allocate a slot to a waiting sequence: a retained one with a shared prefix, or a free one. False without
        one."""
        slots = self._slots
        stream, need = sequence.request.stream, self.need(sequence)
        if not slots.available or self._needs_headroom(need):
            return False
        best, length, cached = self._best_retained(sequence)
        if cached is not None:
            # Taking over loses the rows beyond the prefix, which a later request may share, unless they are evicted
            # next.
            loses = cached.rows - length > self._prefixes.min_tokens
            elsewhere = slots.free and need <= slots.free_rows
            spared = loses and (elsewhere or best != slots.oldest)
            if not spared and slots.take_over(best, stream, need):
                sequence.slot, sequence.inherited, sequence.reserved = best, cached, need
                return True
            slots.touch(best)
        slot = slots.take(stream, need)
        if slot is None:
            return False
        sequence.slot, sequence.reserved = slot, need
        return True

    def grow(self, sequence: EngineSequence) -> bool:
        """Reserve more rows for a sequence, with retained rows evicted if necessary; they become dirty. False if there
        is no row at all."""
        slots, wanted = self._slots, min(self._reserved_rows, sequence.max_length - sequence.reserved)
        while slots.free_rows < wanted and slots.oldest is not None:
            slots.evict(slots.oldest)
        rows = min(wanted, slots.free_rows)
        slots.grow(sequence.slot, rows)
        sequence.reserved += rows
        return rows > 0

    def fits_instead_of(self, sequence: EngineSequence, victims: Sequence[EngineSequence]) -> bool:
        """A slot and enough rows are available if these others are preempted, after evictions if necessary."""
        slots, policy, need = self._slots, self._prefixes, self.need(sequence)
        given = sum(victim.reserved for victim in victims)
        alone = slots.active == len(victims)
        most = slots.capacity if alone else int((1.0 - policy.headroom) * slots.capacity)
        room = slots.free_rows + slots.retained_tokens + given
        return bool(slots.available or victims) and need <= room and slots.reserved_rows - given + need <= most

    def find_prefix(self, sequence: EngineSequence, others: Iterable[EngineSequence]) -> tuple[int, int]:
        """Return the slot to take the first rows of a new sequence from, and their number.

        Its own slot is preferred, because those rows need no copy, to a retained slot or to one of `others`.
        """
        own = 0 if sequence.inherited is None else self._reusable(sequence, sequence.slot, sequence.inherited, 1)
        best = (sequence.slot, own)
        for slot, cached in self._sources(sequence, others):
            wanted = best[1] + self._prefixes.min_tokens
            if wanted >= sequence.prefill_length:  # one token at least is computed
                break
            length = self._reusable(sequence, slot, cached, wanted)
            if length >= wanted:
                best = (slot, length)
        return best

    def cached_rows(self, sequence: EngineSequence, others: Iterable[EngineSequence]) -> int:
        """Return the most rows that a waiting sequence could take from a retained slot or one of `others` now."""
        most = 0
        for slot, cached in self._sources(sequence, others):
            most = max(most, self._reusable(sequence, slot, cached, most + 1))
            if most >= sequence.prefill_length - 1:
                break
        return most

    def gains_by_waiting(self, sequence: EngineSequence, start: int, other: EngineSequence, other_start: int) -> bool:
        """A sequence that could start at row `start` could reuse enough more rows after the prompt of another one,
        which is at `other_start`, is complete, so that waiting for it pays."""
        if not self._prefixes.enabled or sequence.request.tenant != other.request.tenant:
            return False
        if sequence.kept is not None or other.kept is not None:
            return False
        if self._states is not None:
            return self._states.gains_by_waiting(sequence, start, other, other_start, self._prefixes.min_tokens)
        most = min(sequence.prefill_length - 1, other.prefill_length)
        shared = common_prefix(sequence.tokens, other.tokens, most)
        return shared >= start + self._prefixes.min_tokens

    def begin(self, sequence: EngineSequence, source: int, length: int) -> PrefixCopy | None:
        """Record the rows that a sequence starts with. Returns the copy that the runner must make first, if any."""
        inherited = sequence.inherited
        held = inherited.rows if inherited is not None and source == sequence.slot else self._slots.rows(source)
        sequence.reused, sequence.inherited = length, None
        sequence.source = self._slots.retained_rows(source) if length else None
        if not sequence.restarted:
            sequence.cached_tokens = length
        sequence.started = True
        self._slots.shrink_reservation(sequence.slot, sequence.reserved)
        sequence.cached.rows = length
        # Exact rows need no chunk ends, and without them a prefix ends where a chunk of both ended.
        sequence.cached.chunk_ends = tuple(end for end in sequence.chunk_ends if end <= length)
        self._slots.add_rows(sequence.slot, length)
        self._slots.touch(source)
        snapshot = None if self._states is None else self._states.start(sequence, source, length, held)
        return PrefixCopy(source, sequence.slot, length, snapshot) if length or inherited is not None else None

    def begin_restore(
        self, sequence: EngineSequence, others: Iterable[EngineSequence], stored: int, block: int
    ) -> PrefixCopy | None:
        """Let a new sequence take its first `stored` rows from the prefix tier, in blocks, unless slots have nearly as
        many. Returns the copy that the runner must make first, of whole blocks that a slot has, if any."""
        source, length = self.find_prefix(sequence, others)
        if stored < length + self._prefixes.min_tokens:
            return None
        # With a recurrent state no block of a slot is taken: it may lack the state that rows are restored behind.
        whole = length // block * block if self._states is None else 0
        copy = self.begin(sequence, source if whole else sequence.slot, whole)
        sequence.restored_from, sequence.restores_to = whole, stored
        sequence.cached.has_state = self._states is None
        if self._states is not None:
            self._states.restored(sequence.slot, stored)  # before another sequence takes these rows
        return copy

    def release(self, sequence: EngineSequence, *, failed: bool) -> None:
        """Release the slot of an ended sequence: retain its rows, or make it dirty if it `failed` or has too few
        rows."""
        if sequence.reused is None and sequence.inherited is not None:  # it has not changed the retained rows
            sequence.cached = sequence.inherited
            self._slots.add_rows(sequence.slot, sequence.cached.rows)
        shared = self._prefixes.enabled and sequence.kept is None and sequence.cached.has_state
        if not failed and shared and sequence.cached.rows >= self._prefixes.min_tokens:
            self._retain(sequence)
        else:
            self._slots.release(sequence.slot)

    def evict_for(self, sequence: EngineSequence) -> int | None:
        """Evict the least recently used slot if enough rows are available after this and possibly more evictions.

        Returns the slot, now dirty; None if no eviction is needed, or none helps.
        """
        slots, oldest, need = self._slots, self._slots.oldest, self.need(sequence)
        lacks = not slots.free or slots.free_rows < need
        if oldest is None or not lacks or self._needs_headroom(need) or slots.free_rows + slots.retained_tokens < need:
            return None
        slots.evict(oldest)
        return oldest

    def evict_suspects(
        self, sequence: EngineSequence, beginning: Iterable[EngineSequence], *, non_finite: bool
    ) -> None:
        """Evict retained rows that may be the cause of the failure of `sequence`, or corrupted like its own.

        The cause may be the rows that it has copied. Rows are shared before a token proves that they are finite, within
        a tenant only: with `non_finite` logits, unproven rows of its tenant are evicted as well, such as those of a
        prompt that was cancelled halfway. Sequences of `beginning` that have taken such rows over start with an empty
        prefix.
        """
        tenant = sequence.request.tenant
        if self._states is not None:
            self._states.discard_suspects(sequence, non_finite=non_finite)

        def suspect(cached: CachedRows) -> bool:
            unproven = cached.tenant == tenant and cached.proven < cached.rows
            return cached is sequence.source or (non_finite and unproven)

        for each in beginning:
            if each.inherited is not None and suspect(each.inherited):
                each.inherited = CachedRows(each.request.tenant, ())
        for slot in [slot for slot, cached in self._slots.retained() if suspect(cached)]:
            self._slots.evict(slot)

    def _needs_headroom(self, need: int) -> bool:
        """So many rows more would leave too few to retain. A sequence that runs alone may have all."""
        slots = self._slots
        most = int((1.0 - self._prefixes.headroom) * slots.capacity)
        return self._prefixes.headroom > 0 and slots.active > 0 and slots.reserved_rows + need > most

    def _retain(self, sequence: EngineSequence) -> None:
        """Retain the rows of an ended sequence, and evict the least recently used slots beyond the bound."""
        self._slots.retain(sequence.slot, sequence.cached)
        most = self._prefixes.max_rows
        while most is not None and self._slots.retained_tokens > most and self._slots.oldest is not None:
            self._slots.evict(self._slots.oldest)

    def _best_retained(self, sequence: EngineSequence) -> tuple[int, int, CachedRows | None]:
        """Return the retained slot with the longest reusable prefix; of equal ones, that with the fewest other rows,
        and then the least recently used one."""
        best: tuple[int, int, CachedRows | None] = (-1, 0, None)
        for slot, cached in self._slots.retained():
            length = self._reusable(sequence, slot, cached, max(best[1], 1))
            if length and (length, -cached.rows) > (best[1], -best[2].rows if best[2] else 0):
                best = (slot, length, cached)
        return best

    def _reusable(self, sequence: EngineSequence, slot: int, source: CachedRows, least: int) -> int:
        """Return how many rows a sequence could take. 0 if it is fewer than `least` or than are worth it: mostly one
        look tells, which matters where a prompt is compared with the rows of thousands of sequences."""
        last = max(least, self._prefixes.min_tokens) - 1
        if last >= source.rows or last >= sequence.prefill_length - 1 or source.tokens[last] != sequence.tokens[last]:
            return 0
        if not self._prefixes.enabled or sequence.computes_all or sequence.kept is not None or not source.has_state:
            return 0
        wanted = CachedRows(sequence.request.tenant, sequence.tokens, 0, sequence.chunk_ends)
        # At least one token must be computed, for the logits of the first sampled token.
        length = reusable(wanted, source, sequence.prefill_length - 1, exact_rows=self._exact)
        length = sequence.whole(length, bidirectional=self._bidirectional)
        if self._states is not None and length > last:
            length = self._states.usable(sequence, slot, source, length)
        return length if length > last else 0

    def _sources(self, sequence: EngineSequence, others: Iterable[EngineSequence]) -> Iterator[tuple[int, CachedRows]]:
        yield from self._slots.retained()
        for other in others:
            if other is not sequence and other.cached.rows and other.kept is None:
                yield other.slot, other.cached
