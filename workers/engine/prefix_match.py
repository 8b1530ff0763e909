"""Finds cache rows that one sequence may take from another. Pure.

Rows are shared within a tenant only: a hit is faster, which would reveal to one tenant what another has sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from workers.engine.states.snapshot_store import Snapshot
from workers.prefix_store.block import RowBlock

MIN_PREFIX_TOKENS = 32
"""Length below which a prefix is recomputed: a call of the smallest chunk costs less than the reuse."""
_STRIDE = 64


@dataclass(frozen=True, slots=True)
class PrefixPolicy:
    """Bounds on what is retained of ended sequences and reused."""

    enabled: bool = True
    """False retains nothing, and shares no rows between running sequences either."""
    max_rows: int | None = None
    """Maximum number of rows retained of ended sequences; None retains the last sequence of every slot."""
    min_tokens: int = MIN_PREFIX_TOKENS
    """Length of the shortest prefix that is reused."""
    headroom: float = 0.0
    """Share of all rows that a further sequence may not reserve while others run, so that they can stay retained."""

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 0:
            raise ValueError(f"max_rows must not be negative, not {self.max_rows}")
        if self.min_tokens < 1:
            raise ValueError(f"min_tokens must be at least 1, not {self.min_tokens}")
        if not 0.0 <= self.headroom < 1.0:
            raise ValueError(f"headroom must be 0 or more and below 1, not {self.headroom}")


@dataclass(frozen=True, slots=True)
class PinnedPrefix:
    """First rows of a prompt that the prefix tier keeps for some time."""

    rows: int
    seconds: float


@dataclass(slots=True)
class CachedRows:
    """Cache contents of a slot: row i was computed from `tokens[: i + 1]`. There may be more tokens than rows."""

    tenant: str
    tokens: Sequence[int]
    rows: int = 0
    chunk_ends: tuple[int, ...] = ()
    """Ends of the prefill chunks that computed the first rows, in order; decoded rows follow."""
    stream: int = -1
    """The sequence that has computed the last of them."""
    proven: int = 0
    """Number of rows when a token was sampled last: its logits would not be finite if these rows were not."""
    blocks: list[RowBlock] = field(default_factory=list)
    """The names of its first blocks in the prefix tier, as far as they were needed."""
    saved_blocks: int | None = 0
    """The number of first blocks that the tier has; None if no more are saved."""
    early_blocks: int | None = None
    """The first of them that was saved before a token had proven it, counted from 0; None if none was."""
    wanted_blocks: int | None = None
    """The first blocks that an earlier sequence had as well; None until this was looked for."""
    pins: tuple[PinnedPrefix, ...] = ()
    """Those that the tier does not keep yet."""
    states: list[Snapshot] = field(default_factory=list)
    """Snapshots of the recurrent state at ends of blocks, which the tier may not have yet; shortest first."""
    saved_state: int = 0
    """The length of the longest of them that the tier has, or that it will not have."""
    has_state: bool = True
    """The slot has the recurrent state after these rows, or the model has none. Otherwise no sequence can go on from
    them."""

    @property
    def proven_rows(self) -> int:
        """Rows that a token has proven, and that are still there."""
        return min(self.rows, self.proven)


def common_prefix(one: Sequence[int], other: Sequence[int], limit: int) -> int:
    """Return how many of the first `limit` tokens are equal. Compares whole strides at once, which is 20 times
    faster."""
    limit = min(limit, len(one), len(other))
    at = 0
    while at < limit and one[at : at + _STRIDE] == other[at : at + _STRIDE]:
        at += _STRIDE
    if at >= limit:
        return limit
    rest = zip(one[at:limit], other[at:limit], strict=True)
    return at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))


def reusable(wanted: CachedRows, source: CachedRows, limit: int, *, exact_rows: bool) -> int:
    """Return how many rows of `source` are bitwise identical to those of `wanted` without reuse; at most `limit`.

    With `exact_rows` every common row is. Otherwise rows are identical if the same chunks computed them;
    `wanted.chunk_ends` are its chunk ends without reuse.
    """
    if wanted.tenant != source.tenant:
        return 0
    shared = common_prefix(wanted.tokens, source.tokens, min(limit, source.rows))
    if exact_rows:
        return shared
    equal = takewhile(
        lambda pair: pair[0] == pair[1] <= shared, zip(wanted.chunk_ends, source.chunk_ends, strict=False)
    )
    return max((end for end, _ in equal), default=0)
