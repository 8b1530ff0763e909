"""The prefix tier: saves rows of sequences in a store apart from the slots, and restores them for later ones.

Rows are saved in blocks while their sequence runs, so that another worker finds them if this one is lost: when a
sampled token has proven that they are finite, and those of a long prompt while it is computed. If such a prompt fails,
they are dropped; if its worker is lost, who takes them checks its own logits, as of all rows that it takes
(`distrust`). Saves and restores are made between the calls of a step, a few at a time. What nobody is known to ask for
again costs a bounded share of the time, and is saved last.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile

import structlog

from protocol.commands import client_of
from protocol.events import SharedTier
from workers.engine.prefix_match import CachedRows, PinnedPrefix
from workers.engine.runner import Runner, RunnerCapabilities
from workers.engine.sequence import EngineSequence
from workers.engine.states.snapshot_store import Snapshot
from workers.engine.tier.save_budget import SaveBudget
from workers.engine.tier.stored_states import StoredStates
from workers.prefix_store.block import RowBlock, extend, root, rows_of_block
from workers.prefix_store.entry import stored_size
from workers.prefix_store.store import PrefixStore

SAVED_PER_STEP = 1 << 20
"""Bytes of blocks that are read from their slots in one step."""
FEWEST_PER_STEP = 2
"""Blocks that are read in any case."""
EARLY_RUN = 4
"""Blocks of a prompt that are saved together while it is computed: what a save takes beside its copies, such as waking
the thread that writes, is as much for one as for several."""
SEEN_BLOCKS = 32_768
"""Blocks that are remembered, to tell those that are asked for again."""
IDLE_WAIT_S = 0.1
"""Time that a step without other work waits for the store to take blocks: after it, the worker looks for requests."""
RESTORE_S = 0.02
"""Time that a step restores rows while other sequences decode; one block at least."""
RESUMED_RESTORE_S = 0.1
"""The same while it restores a stream that another worker has begun: its client waits for the next token as well."""
ALONE_RESTORE_S = 0.1
"""The same while none decodes: after it, the worker looks for new requests and cancels."""


class PrefixTier:
    """Used by the engine alone. A store that fails, or is too small, costs the rows in it and nothing else."""

    def __init__(
        self,
        store: PrefixStore,
        runner: Runner,
        *,
        block_rows: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`block_rows` is for tests; None derives it from the size of a row."""
        capabilities = runner.capabilities
        self._store = store
        self._runner = runner
        self._format = capabilities.rows_format
        self._row_bytes = capabilities.row_bytes
        self.block_rows = rows_of_block(self._row_bytes) if block_rows is None else block_rows
        self._states = StoredStates(store, runner, self.block_rows) if capabilities.state_bytes else None
        """The states of a model that has recurrent ones."""
        self.clock = clock
        self._log = structlog.get_logger()
        self._saves = True
        self._saves_per_step = max(FEWEST_PER_STEP, SAVED_PER_STEP // self._block_bytes)
        self._early_run = min(EARLY_RUN, self._saves_per_step)
        self._budget = SaveBudget()
        self._spent_s = 0.0
        """Seconds of the store that the budget knows of."""
        self._last_saved = b""
        """The key of the last block that this step has saved."""
        self._budgeted_at = clock()
        self._long_prompts_s = 0.0
        """Seconds since then in which long prompts were computed."""
        self._expected: set[int] = set()
        """Streams for which blocks are read ahead."""
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        """Keys of blocks that sequences had, the latest last."""
        self.unsaved = False
        """There were rows to save after the last step."""
        self.hits = 0
        """Sequences that took rows from the store."""
        self.tokens = 0
        """Tokens whose rows these were."""

    @staticmethod
    def serves(capabilities: RunnerCapabilities) -> bool:
        """Return whether rows of a runner can be restored: there are any, which are the same, as the recurrent state
        after them, whichever chunks computed them."""
        return bool(capabilities.exact_rows and capabilities.rows_format and capabilities.row_bytes)

    @staticmethod
    def least_bytes(capabilities: RunnerCapabilities) -> int:
        """Return the bytes of a store with one block, and with the recurrent state after it."""
        block = stored_size(rows_of_block(capabilities.row_bytes) * capabilities.row_bytes)
        return block + (stored_size(capabilities.state_bytes) if capabilities.state_bytes else 0)

    @property
    def shared(self) -> SharedTier:
        """The tier as a gateway knows it."""
        of = f"{self._store.identity}\0{self._format}\0{self.block_rows}"
        rows = self._store.max_bytes // self._row_bytes
        return SharedTier(hashlib.blake2b(of.encode(), digest_size=16).hexdigest(), rows, self.block_rows)

    @property
    def used_bytes(self) -> int:
        """Bytes of the store."""
        return self._store.used_bytes

    @property
    def failures(self) -> int:
        """Blocks that could not be written or read."""
        return self._store.failures

    def expect(self, sequence: EngineSequence, held: Callable[[EngineSequence], int]) -> None:
        """Read the blocks that a new sequence is going to take while it waits: those beyond the rows that it can take
        from a slot, of which `held` returns the number."""
        rows = self.rows_for(sequence)
        if self._states is not None:  # others will begin behind these as well
            ends = {self._known_blocks(sequence.cached.blocks), *map(self._pinned_blocks, sequence.request.pins)}
            sequence.shared_ends |= {blocks * self.block_rows for blocks in ends if blocks}
        if rows and rows > (other := held(sequence)):
            blocks = sequence.cached.blocks[other // self.block_rows : rows // self.block_rows]
            self._expected.add(sequence.request.stream)
            self._store.expect(sequence.request.stream, blocks, self._block_bytes)
            if self._states is not None:
                self._store.expect(sequence.request.stream, [blocks[-1].state], self._states.state_bytes)

    def forget(self, stream: int) -> None:
        """Read no more for a sequence that has ended, or takes no rows."""
        if stream in self._expected:
            self._expected.discard(stream)
            self._store.forget(stream)

    def rows_for(self, sequence: EngineSequence) -> int:
        """Return the first rows of a prompt that the store has, with the recurrent state after them if the model has
        one. At least one token is left to compute."""
        if sequence.reports_prompt:
            return 0
        blocks = self._blocks(sequence.cached, (sequence.prefill_length - 1) // self.block_rows)
        count = 0
        while count < len(blocks) and self._store.holds(blocks[count]):
            count += 1
        return (count if self._states is None else self._states.longest(blocks, count)) * self.block_rows

    def restore(self, sequence: EngineSequence, until: float) -> Iterator[int]:
        """Write blocks of rows to the slot of a sequence, until a time of `clock`; one at least.

        Yields the rows of each block, which the caller records before it goes on. If a block cannot be read, the
        sequence computes the rest: with a recurrent state, from the longest block before it with a state on. Then it
        yields a negative number, of the rows that it does not keep. Raises what the runner raises.
        """
        size = self.block_rows
        while sequence.cached.rows < sequence.restores_to:
            rows = self._store.read(sequence.cached.blocks[sequence.cached.rows // size], self._block_bytes)
            if rows is None:
                sequence.restores_to = sequence.cached.rows
                break
            self._runner.write_rows(sequence.slot, sequence.cached.rows, rows)
            yield size
            if self.clock() >= until:
                break
        if sequence.cached.rows >= sequence.restores_to:
            if self._states is not None:
                sequence.restores_to = self._states.restore(sequence)
                yield sequence.restores_to - sequence.cached.rows
            self._restored(sequence)

    def _restored(self, sequence: EngineSequence) -> None:
        """Note the end of a restore."""
        self.forget(sequence.request.stream)
        taken = sequence.restores_to - sequence.restored_from
        if taken:
            count = sequence.restores_to // self.block_rows
            sequence.cached.saved_blocks = count
            self._store.touch(sequence.cached.blocks[:count])
            if not sequence.restarted:
                self.hits += 1
                self.tokens += taken
        sequence.restores_to = 0

    def created_tokens(self, sequence: EngineSequence) -> int:
        """Return the tokens of pinned prefixes that a sequence has computed, and that the store is going to keep."""
        if not self._saves or not self._store.can_write() or sequence.cached.saved_blocks is None:
            return 0
        rows = max((self._pinned_blocks(pin) for pin in sequence.request.pins), default=0) * self.block_rows
        return max(0, rows - sequence.cached_tokens)

    def distrust(self, sequence: EngineSequence) -> None:
        """Drop the blocks that a sequence has started with: its logits are not finite."""
        for block in sequence.cached.blocks[: sequence.cached.rows // self.block_rows]:
            self._store.discard(block)
        if self._states is not None:
            self._states.discard(sequence.cached.blocks[: sequence.cached.rows // self.block_rows])
        sequence.cached.saved_blocks = None

    def drop_unproven(self, sequence: EngineSequence) -> None:
        """Drop the blocks that a sequence has saved before a token had proven them: it has failed."""
        cached = sequence.cached
        if cached.early_blocks is None or cached.saved_blocks is None:
            return
        for block in cached.blocks[max(cached.early_blocks, self._proven(cached)) : cached.saved_blocks]:
            self._store.discard(block)
        cached.saved_blocks = None

    def computed_long_prompts(self, seconds: float) -> None:
        """Note that a call has computed long prompts for so many seconds."""
        self._long_prompts_s += seconds

    def save(self, slots: Iterable[tuple[int, CachedRows, int]], *, idle: bool) -> None:
        """Save blocks of these slots, of so many of their rows, that the store does not have, the first of each
        sequence first, and then the recurrent state after them.

        Those that an earlier sequence had as well, or that are pinned, are saved in any case: they will be asked for
        again. Others take a bounded share of the time, and a larger one of that in which long prompts are computed, or
        wait until the engine is `idle`, when a save delays nobody.
        """
        self.unsaved = False
        now = self.clock()
        self._budget.passed(now - self._budgeted_at, self._long_prompts_s)
        self._budgeted_at, self._long_prompts_s = now, 0.0
        spent = self._store.spent_s
        if not idle:
            self._budget.took(spent - self._spent_s)
        self._spent_s = spent
        if not self._saves or not self._store.can_write():
            return
        most = ((slot, cached, self._most(cached, rows)) for slot, cached, rows in slots)
        held = [each for each in most if self._may_save(each[1], each[2])]
        self._last_saved = b""
        self.unsaved = self._save_held(held, idle=idle)
        self._store.write_offered()

    def _save_held(self, held: Sequence[tuple[int, CachedRows, int]], *, idle: bool) -> bool:
        """Save what a step may save of these slots, up to so many blocks of each. Return whether something is left that
        can be saved."""
        left = self._saves_per_step
        until = self.clock() + IDLE_WAIT_S if idle else None
        for known in (True, False):
            for slot, cached, blocks in held:
                most = min(self._wanted(cached), self._proven(cached)) if known else blocks
                while (unsaved := self._next_unsaved(cached, most)) is not None:
                    if not left or not (known or idle or self._budget.allows):
                        return True
                    began = time.thread_time()
                    wait_s = 0.0 if until is None else max(0.0, until - self.clock())
                    if not self._save(slot, cached, unsaved, wait_s):
                        return self._saves
                    if not idle:
                        self._budget.took(time.thread_time() - began)
                    left -= 1
                self._pin(cached)
        return False

    def _most(self, cached: CachedRows, rows: int) -> int:
        """Return the blocks that may be saved of so many rows: of those that no token has proven, whole runs."""
        saved, run = cached.saved_blocks or 0, self._early_run
        return max(self._proven(cached), saved + (rows // self.block_rows - saved) // run * run)

    def _may_save(self, cached: CachedRows, most: int) -> bool:
        """Return whether there may be something to save of a sequence with so many blocks. Cheap: most steps save
        nothing."""
        if cached.saved_blocks is None:
            return False
        unknown = cached.wanted_blocks is None and cached.proven > 0
        return cached.saved_blocks < most or unknown or self._states is not None or len(cached.pins) > 0

    def _proven(self, cached: CachedRows) -> int:
        """Return the blocks of a sequence that a token has proven."""
        return cached.proven_rows // self.block_rows

    def _wanted(self, cached: CachedRows) -> int:
        """Return the first blocks of a sequence that are saved in any case."""
        if cached.wanted_blocks is None:
            if not (count := self._proven(cached)):
                return 0
            blocks = self._blocks(cached, count)[:count]
            cached.wanted_blocks = self._known_blocks(blocks)
            for block in blocks:
                self._seen[block.key] = None
                self._seen.move_to_end(block.key)
            while len(self._seen) > SEEN_BLOCKS:
                self._seen.popitem(last=False)
        pinned = max((self._pinned_blocks(pin) for pin in cached.pins), default=0)
        return max(cached.wanted_blocks, pinned)

    def _known_blocks(self, blocks: Sequence[RowBlock]) -> int:
        """Return how many of the first blocks of a sequence an earlier one had as well."""
        return sum(1 for _ in takewhile(lambda block: block.key in self._seen, blocks))

    def _pin(self, cached: CachedRows) -> None:
        """Pin the prefixes of a sequence all of whose blocks the store has."""
        if not cached.pins or cached.saved_blocks is None or not cached.proven:
            return
        for pin in cached.pins:
            count = self._pinned_blocks(pin)
            if 0 < count <= cached.saved_blocks:
                blocks = tuple(self._blocks(cached, count)[:count])
                if self._states is not None:
                    self._states.pin(cached, count, pin.seconds)
                self._store.pin(client_of(cached.tenant), blocks, self._block_bytes, pin.seconds)
        cached.pins = tuple(pin for pin in cached.pins if self._pinned_blocks(pin) > cached.saved_blocks)

    def _pinned_blocks(self, pin: PinnedPrefix) -> int:
        """Return the blocks of a prefix that are pinned: whole ones, as many as its owner may have with the state that
        they are of no use without."""
        state_bytes = 0 if self._states is None else self._states.state_bytes
        return min(pin.rows // self.block_rows, self._store.most_pinned(self._block_bytes, state_bytes))

    @property
    def _block_bytes(self) -> int:
        return self.block_rows * self._row_bytes

    def _next_unsaved(self, cached: CachedRows, most: int) -> RowBlock | Snapshot | None:
        """Return the first block of a sequence that the store does not have, of the first `most`, or the state after
        them."""
        while cached.saved_blocks is not None and cached.saved_blocks < most:
            block = self._blocks(cached, cached.saved_blocks + 1)[cached.saved_blocks]
            # Looked up once for a run of blocks, because it takes half as long as to copy one: what follows a block
            # that the store did not have, it does not have either.
            if block.parent == self._last_saved or not self._store.holds(block):
                return block
            cached.saved_blocks += 1
        if self._states is None or cached.saved_blocks is None:
            return None
        return self._states.unsaved(cached, min(most, cached.saved_blocks))

    def _save(self, slot: int, cached: CachedRows, unsaved: RowBlock | Snapshot, wait_s: float) -> bool:
        if isinstance(unsaved, RowBlock):
            return self._save_block(slot, cached, unsaved, wait_s)
        if not self._store.has_room(wait_s):
            return False
        assert self._states is not None, "it has a state to save"
        self._states.save(cached, unsaved)
        return True

    def _save_block(self, slot: int, cached: CachedRows, block: RowBlock, wait_s: float) -> bool:
        assert cached.saved_blocks is not None, "it has a block to save"
        follows = block.parent == self._last_saved or not cached.saved_blocks
        if not follows and not self._store.holds(cached.blocks[cached.saved_blocks - 1]):
            cached.saved_blocks = None  # the store is too small: what comes after would not be found
            return True
        if not self._store.has_room(wait_s):
            return False
        start = cached.saved_blocks * self.block_rows
        try:
            rows = self._runner.read_rows(slot, start, start + self.block_rows)
        except Exception as error:  # noqa: BLE001 - any error of a device must cost no request
            self._saves = False
            self._log.error("prefix_not_saved", slot=slot, exc_info=error)
            return False
        self._store.offer(block, rows)
        self._last_saved = block.key
        if cached.early_blocks is None and start + self.block_rows > cached.proven:
            cached.early_blocks = cached.saved_blocks
        cached.saved_blocks += 1
        return True

    def _blocks(self, cached: CachedRows, count: int) -> list[RowBlock]:
        """Return the first blocks of a sequence, at least `count`."""
        if len(cached.blocks) < count:
            first = root(self._format, cached.tenant, self.block_rows)
            extend(cached.blocks, first, cached.tokens, self.block_rows, count)
        return cached.blocks

    def settle(self) -> None:
        """Wait until the store has made all changes."""
        self._store.settle()

    def close(self) -> None:
        """Close the store."""
        self._store.close()
