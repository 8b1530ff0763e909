"""Index of the prefixes that the workers of one model hold, by their digests. Pure."""

from bisect import bisect_left
from collections.abc import Hashable, Sequence

MAX_DIGESTS = 1 << 18
"""Digests in one index, each counted once for everything that holds it: some 80 MB at most."""

MAX_MATCHES = 64
"""Workers that are considered for what they hold of one prompt: a choice takes no longer with thousands of them."""


class PrefixIndex:
    """Counts for each digest by how much each worker holds it: by sequences that run, and by what ended ones left.

    What one thing holds begins at the first digest, so that a worker which holds one digest of a prompt holds all
    before it. With more than `bound` digests, the worker that has most of them forgets what it has held for the longest
    time.
    """

    def __init__(self, bound: int = MAX_DIGESTS) -> None:
        self._bound = bound
        self._total = 0
        self._workers: dict[int, dict[str, int]] = {}
        """The workers that hold a digest, and by how much."""
        self._held: dict[str, dict[Hashable, tuple[int, ...]]] = {}
        """The holders of each worker and their digests, the oldest first."""
        self._counts: dict[str, int] = {}

    def hold(self, worker: str, holder: Hashable, digests: Sequence[int]) -> None:
        """Let a holder of a worker hold these digests, in place of others."""
        self.drop(worker, holder)
        if not digests:
            return
        self._held.setdefault(worker, {})[holder] = kept = tuple(digests)
        for digest in kept:
            workers = self._workers.setdefault(digest, {})
            workers[worker] = workers.get(worker, 0) + 1
        self._count(worker, len(kept))
        while self._total > self._bound:
            most = max(self._counts, key=self._counts.__getitem__)
            self.drop(most, next(iter(self._held[most])))

    def drop(self, worker: str, holder: Hashable) -> None:
        """Forget what a holder holds, if anything."""
        held = self._held.get(worker, {})
        digests = held.pop(holder, ())
        for digest in digests:
            workers = self._workers[digest]
            workers[worker] -= 1
            if not workers[worker]:
                del workers[worker]
                if not workers:
                    del self._workers[digest]
        self._count(worker, -len(digests))

    def clear(self, worker: str) -> None:
        """Forget all that a worker holds, as its process has ended."""
        for holder in list(self._held.get(worker, ())):
            self.drop(worker, holder)

    def digests(self, worker: str) -> int:
        """Return the number of digests that a worker holds, each counted once for everything that holds it."""
        return self._counts.get(worker, 0)

    def held(self, worker: str, holder: Hashable) -> Sequence[int]:
        """Return the digests that a holder holds, if any."""
        return self._held.get(worker, {}).get(holder, ())

    def holders(self, worker: str) -> int:
        """Return how many things of a worker hold something."""
        return len(self._held.get(worker, ()))

    def matches(self, digests: Sequence[int], most: int = MAX_MATCHES) -> dict[str, int]:
        """Return how many of the first digests of a prompt workers hold: `most` of those that hold most, the longest
        prefix first, without those that hold none."""
        found: dict[str, int] = {}
        longest = bisect_left(digests, True, key=lambda digest: digest not in self._workers)
        for count in range(longest, 0, -1):
            workers = self._workers.get(digests[count - 1], {})
            if len(workers) > len(found):  # otherwise they are the same ones
                for worker in workers:
                    found.setdefault(worker, count)
                    if len(found) == most:
                        return found
        return found

    def matched(self, worker: str, digests: Sequence[int]) -> int:
        """Return how many of the first digests of a prompt a worker holds."""
        return bisect_left(digests, True, key=lambda digest: worker not in self._workers.get(digest, ()))

    def _count(self, worker: str, change: int) -> None:
        self._total += change
        count = self._counts.get(worker, 0) + change
        if count:
            self._counts[worker] = count
        else:
            self._counts.pop(worker, None)
            self._held.pop(worker, None)
