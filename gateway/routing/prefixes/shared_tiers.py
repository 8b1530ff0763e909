"""The content of the prefix tiers that workers of one machine share, as far as their reports tell. Pure.

A prefix that one worker has computed is in the tier of its machine, and each worker of the machine restores it. No
worker reports what a tier evicts. So the reports are kept as the tier keeps its blocks: as many rows as it has room
for, those used last; and how much of the promises workers really had is measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from gateway.routing.prefixes.index import PrefixIndex
from protocol.events import SharedTier
from protocol.prefix_digests import BOUNDARIES

MAX_TIERS = 4
"""Tiers that are considered for one prompt, those that hold most of it."""
MAX_SHARING = 64
"""Workers of one tier that are considered."""
MAX_PREFIXES = 1 << 13
"""Prefixes of one tier, however many rows a worker says that it has room for."""
KEPT_SHARE = 15 / 16
"""Share of a tier that counts as filled: an eviction frees the rest."""


@dataclass(slots=True)
class _Tier:
    terms: SharedTier
    workers: dict[str, None] = field(default_factory=dict)
    prefixes: dict[int, float] = field(default_factory=dict)
    """The rows of each prefix that those before it did not have, by its last digest; that used last is the last."""
    rows: float = 0.0
    """Those of all prefixes."""


class SharedTiers:
    """The tiers of the workers of one model."""

    def __init__(self) -> None:
        self._tiers: dict[str, _Tier] = {}
        self._tier_of: dict[str, _Tier] = {}
        """The tier of each worker that has one."""
        self._index = PrefixIndex()
        """Has the digests that each tier holds."""

    def __bool__(self) -> bool:
        """True if a worker has a tier."""
        return bool(self._tier_of)

    def join(self, worker: str, terms: SharedTier) -> None:
        """Let a worker have this tier, or none if its id is empty."""
        known = self._tier_of.get(worker)
        if known is not None and known.terms == terms:
            return
        self.leave(worker)
        if not terms.id:
            return
        tier = self._tiers.setdefault(terms.id, _Tier(terms))
        tier.terms = terms
        tier.workers[worker] = None
        self._tier_of[worker] = tier

    def leave(self, worker: str) -> None:
        """Forget a worker, and a tier with its last one: what it holds is not used here."""
        tier = self._tier_of.pop(worker, None)
        if tier is None:
            return
        del tier.workers[worker]
        if not tier.workers:
            self._index.clear(tier.terms.id)
            del self._tiers[tier.terms.id]

    def saved(self, worker: str, digests: Sequence[int], rows: int) -> None:
        """Note that a worker has computed a prefix of so many rows, or used it again."""
        tier = self._tier_of.get(worker)
        if tier is None or not digests or rows < tier.terms.block:
            return
        for digest in digests:  # this one, or earlier turns
            if digest in tier.prefixes:
                self._drop(tier, digest)
        shared = self._index.matched(tier.terms.id, digests)
        if shared == len(digests):
            return  # a longer one has it
        own = rows * (1 - BOUNDARIES[shared - 1] / BOUNDARIES[len(digests) - 1]) if shared else float(rows)
        tier.prefixes[digests[-1]] = own
        tier.rows += own
        self._index.hold(tier.terms.id, digests[-1], digests)
        while tier.rows > KEPT_SHARE * tier.terms.rows or len(tier.prefixes) > MAX_PREFIXES:
            self._drop(tier, next(iter(tier.prefixes)))

    def matches(self, digests: Sequence[int]) -> dict[str, int]:
        """Return how many of the first digests of a prompt tiers hold: of some tiers, those that hold most."""
        return self._index.matches(digests, MAX_TIERS)

    def matched(self, worker: str, digests: Sequence[int]) -> int:
        """Return how many of the first digests of a prompt the tier of a worker holds."""
        tier = self._tier_of.get(worker)
        return 0 if tier is None else self._index.matched(tier.terms.id, digests)

    def whole_blocks(self, worker: str, rows: float) -> float:
        """Return how many of these rows its tier has in whole blocks, as it keeps no others."""
        tier = self._tier_of.get(worker)
        return 0.0 if tier is None else float(rows // tier.terms.block * tier.terms.block)

    def workers(self, tier: str) -> list[str]:
        """Return the workers of a tier, as many as are considered."""
        return list(islice(self._tiers[tier].workers, MAX_SHARING))

    def _drop(self, tier: _Tier, prefix: int) -> None:
        tier.rows = tier.rows - tier.prefixes.pop(prefix) if len(tier.prefixes) > 1 else 0.0
        self._index.drop(tier.terms.id, prefix)
