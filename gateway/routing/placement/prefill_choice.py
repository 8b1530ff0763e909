"""Chooses a prefill worker for a long prompt, where decoding sequences would be slowed down otherwise.

A worker computes a prompt in chunks between the decode steps of its other sequences, which makes these slower. A
prefill worker computes it alone. After the first token, the sequence moves to one of the others with its cache rows
(see `gateway.routing.placement.row_transfers`), as in DistServe (OSDI 2024) and Splitwise (ISCA 2024).
"""

from collections.abc import Callable, Iterator

from gateway.routing.placement.load_order import Rank
from gateway.routing.prefixes.prefix_routing import PrefixRouting
from gateway.routing.sequence import LiveSequence
from gateway.routing.worker_handle import WorkerHandle
from gateway.routing.worker_pool import WorkerPool
from protocol.events import Phases
from protocol.request import EmbeddedInput

LONG_S = 0.5
"""Seconds that a prompt takes to be computed from which it is long, unless the settings have the number of tokens."""
LEAST_TOKENS = 256
"""Tokens below which it is not long all the same: to move its rows takes about as long as to compute them."""
MOST = 2.0
"""A prefill worker may have to compute so many times the tokens that the other one has to compute, before the first
token of the prompt."""


class PrefillChoice:
    """Reorders the workers for a long prompt. Synchronous."""

    def __init__(self, routing: PrefixRouting, pool: WorkerPool, long_tokens: int) -> None:
        """A prompt is long with so many tokens to be computed; 0: with as many as take `LONG_S`."""
        self._routing = routing
        self._pool = pool
        self._long_tokens = long_tokens

    def order(
        self, handles: Iterator[WorkerHandle], sequence: LiveSequence, may: Callable[[WorkerHandle], bool]
    ) -> Iterator[WorkerHandle]:
        """Yield the workers that may get a sequence in the order in which they should be asked. See
        `PrefixRouting.order`."""
        ordered = self._routing.order(handles, sequence, may)
        return self._for_long(ordered, sequence, may) if self._pool.of_one_phase(sequence.request.model) else ordered

    def long_tokens(self, model: str) -> float:
        """Return the tokens to be computed from which a prompt is long."""
        return self._long_tokens or max(LEAST_TOKENS, LONG_S * self._routing.prefill_rate(model))

    def _for_long(
        self, ordered: Iterator[WorkerHandle], sequence: LiveSequence, may: Callable[[WorkerHandle], bool]
    ) -> Iterator[WorkerHandle]:
        first = next(ordered, None)
        if first is None:
            return
        before = self._better(first, sequence, may)
        yield from before
        if first not in before:
            yield first
        yield from (each for each in ordered if each not in before)

    def _better(
        self, first: WorkerHandle, sequence: LiveSequence, may: Callable[[WorkerHandle], bool]
    ) -> list[WorkerHandle]:
        """Return the workers that should compute a prompt rather than the one that would get it without them, the best
        first. None if that one has nothing else to do, or has most of the prompt."""
        model = first.model
        if first.prefills or not first.load:
            return []
        tokens = self._routing.uncached_on(first, sequence)
        if tokens < self.long_tokens(model):
            return []
        most = MOST * (self._routing.pending(first) + tokens)
        # Their rows have no tokens by which another worker could find them.
        moves = not isinstance(sequence.submit.input, EmbeddedInput)
        wanted: list[Phases] = ["prefill", "both"] if first.phases == "decode" else ["prefill"]
        for phases in wanted:
            found = [
                (self._routing.pending(each) + self._routing.uncached_on(each, sequence), place, each)
                for place, each in enumerate(self._pool.by_load(model))
                if each.phases == phases and (moves or not each.prefills) and self._fits(each, first, may)
            ]
            if better := [each for before, _, each in sorted(found, key=lambda one: one[:2]) if before <= most]:
                return better
        return []

    def _fits(self, handle: WorkerHandle, other: WorkerHandle, may: Callable[[WorkerHandle], bool]) -> bool:
        """It has a free slot, and the sequence can go on with the other one."""
        doubtful, rank, _ = self._pool.preference(handle)
        free = not doubtful and rank is Rank.FREE and self._pool.admits(handle) and may(handle)
        return free and (not handle.prefills or handle.shares_rows(other))
