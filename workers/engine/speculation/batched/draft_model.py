"""Drafts with a smaller model of the same vocabulary, which has a runner and KV slots of its own."""

from collections.abc import Sequence

from protocol.request import Sampling
from workers.engine.prefix_match import common_prefix
from workers.engine.runner import Chunk, DecodeRow, NotFiniteError, Runner
from workers.engine.sequence import EngineSequence
from workers.engine.speculation.batched.fitted_spec import fitted
from workers.engine.speculation.batched.open_draft import OpenDraft
from workers.sampling.sample_spec import SampleSpec

MAX_LAG = 4
"""Tokens of a sequence that the first step of a draft takes at most: those since the last draft."""


class _Cached:
    """The KV of one sequence: row i was computed from `tokens[: i + 1]`."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.tokens: list[int] = []
        self._agreed = 0
        """The first tokens that are known to be those of the sequence."""

    def agreed(self, tokens: Sequence[int]) -> int:
        """Return how many of the first rows are those of a sequence, without that of its last token: the next one is
        sampled after it."""
        limit = min(len(self.tokens), len(tokens) - 1)
        if limit > self._agreed:
            at = self._agreed
            self._agreed += common_prefix(self.tokens[at:limit], tokens[at:limit], limit - at)
        return min(self._agreed, limit)

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        self._agreed = min(self._agreed, length)


class DraftModel:
    """Implements `BatchDrafter`. Owns the runner, which has as many slots as the target's.

    Rows of rejected tokens are truncated when the sequence is computed next. Only sequences that decode have a slot.
    """

    def __init__(self, runner: Runner) -> None:
        """Raises `ValueError` for a runner that takes one row a slot."""
        capabilities = runner.capabilities
        if not capabilities.decode_rows:
            raise ValueError("decode_rows: the runner takes one row a slot in a decode step")
        self.runner = self._runner = runner
        self._vocab_size = capabilities.vocab_size
        self._context = capabilities.context
        self._rows = capabilities.decode_rows
        self._lag = min(MAX_LAG, capabilities.decode_rows)
        self._chunks = capabilities.prefill_chunks
        self._block = capabilities.block_rows
        self._free = list(range(capabilities.slots))
        self._cached: dict[EngineSequence, _Cached] = {}

    def follow(self, decoding: Sequence[EngineSequence]) -> None:
        """See `BatchDrafter.follow`."""
        if not self._cached:
            return
        current = set(decoding)
        for sequence in [each for each in self._cached if each not in current]:
            self.take_back(self._cached.pop(sequence).slot)

    def lend_slot(self) -> int:
        """Return an empty slot for another use. If all are taken, a sequence loses its own, and is computed again.
        Raises what the runner raises: the slot is free then."""
        if not self._free:
            self._free.append(self._cached.popitem()[1].slot)
        self._runner.reset(self._free[-1])  # one that could not be cleared is free all the same
        return self._free.pop()

    def take_back(self, slot: int) -> None:
        """Take back a slot that was lent, or whose sequence has ended, and clear it. Raises what the runner raises."""
        self._free.append(slot)
        self._runner.reset(slot)

    def missing(self, sequence: EngineSequence) -> int:
        """See `BatchDrafter.missing`."""
        known = self._known(sequence)
        lag = len(sequence.tokens) - known
        return 0 if known and lag <= self._lag else lag - 1

    def room(self, sequence: EngineSequence) -> int:
        """See `BatchDrafter.room`. Neither a token that only the target knows can be computed, nor a row of embeddings,
        which is negative."""
        room = self._context - len(sequence.tokens)
        if room > 0:
            lacking = sequence.tokens[self._known(sequence) :]
            if max(lacking) >= self._vocab_size or min(lacking) < 0:
                return 0
        return max(0, room)

    def prepare(self, sequences: Sequence[EngineSequence], most: int) -> int:
        """See `BatchDrafter.prepare`. `most` is rounded down to the size of a chunk, but for the smallest one."""
        room = max((size for size in self._chunks if size <= most), default=self._chunks[0])
        chunks: list[Chunk] = []
        for sequence in sequences:
            cached = self._cached.get(sequence)
            if cached is None:
                if not self._free:  # one is lent
                    break
                cached = self._cached[sequence] = _Cached(self._free.pop())
            begin = self._truncated(sequence, cached)
            tokens = tuple(sequence.tokens[begin : min(begin + room, len(sequence.tokens) - 1)])
            if tokens:
                cached.tokens += tokens
                chunks.append(Chunk(cached.slot, tokens, begin, begin))
            room -= -(-len(tokens) // self._block) * self._block
            if room <= 0:
                break
        if chunks:
            self._runner.prefill(chunks, [None] * len(chunks))
        return sum(len(chunk.tokens) for chunk in chunks)

    def draft(self, drafts: Sequence[OpenDraft]) -> None:
        """See `BatchDrafter.draft`. The first step also takes the tokens that a sequence has got since the last one."""
        slots = [self._cached[each.sequence] for each in drafts]
        pending = [
            each.sequence.tokens[self._truncated(each.sequence, cached) :]
            for each, cached in zip(drafts, slots, strict=True)
        ]
        if sum(map(len, pending)) > max(len(drafts), self._rows):
            for cached, tokens in zip(slots, pending, strict=True):
                if before := tokens[:-1]:
                    self._runner.decode(self._append(cached, before, None))
            pending = [tokens[-1:] for tokens in pending]
        going = list(zip(drafts, slots, pending, strict=True))
        while going := [each for each in going if not each[0].done]:
            rows, lasts = list[DecodeRow](), list[int]()
            for draft, cached, tokens in going:
                rows += self._append(cached, tokens, fitted(draft.spec, self._vocab_size))
                lasts.append(len(rows) - 1)
            sampled = self._runner.decode(rows)
            for last, (draft, _, _) in zip(lasts, going, strict=True):
                token = sampled[last]
                if token is None:
                    raise NotFiniteError
                draft.append(token)
            going = [(draft, cached, draft.tokens[-1:]) for draft, cached, _ in going]

    def settle(self) -> None:
        """See `BatchDrafter.settle`."""
        self._runner.settle()

    def close(self) -> None:
        """See `BatchDrafter.close`."""
        self._runner.close()

    def _known(self, sequence: EngineSequence) -> int:
        cached = self._cached.get(sequence)
        return 0 if cached is None else cached.agreed(sequence.tokens)

    def _truncated(self, sequence: EngineSequence, cached: _Cached) -> int:
        """Drop the rows that are not those of the sequence. Returns the number of the others."""
        rows = cached.agreed(sequence.tokens)
        if rows < len(cached.tokens):
            self._runner.copy_prefix(cached.slot, cached.slot, rows)
            cached.truncate(rows)
        return rows

    @staticmethod
    def _append(cached: _Cached, tokens: Sequence[int], spec: SampleSpec | None) -> list[DecodeRow]:
        """Return the rows of tokens behind those of a slot, the last of which is sampled by `spec`."""
        begin, last = len(cached.tokens), len(tokens) - 1
        cached.tokens += tokens
        rows = enumerate(tokens, begin)
        return [
            DecodeRow(
                cached.slot,
                token,
                at,
                at,
                spec if spec is not None and at == begin + last else SampleSpec(_GREEDY, at + 1),
            )
            for at, token in rows
        ]


_GREEDY = Sampling()
