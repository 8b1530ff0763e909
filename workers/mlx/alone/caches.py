"""The caches that mlx-lm makes for one sequence: how many rows they have, and their state as bytes."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
from mlx_lm.models import cache as kinds

UNBOUNDED = 1 << 62
"""The bytes of a state whose bound is not known: more than any store of snapshots has."""
ROWS = (kinds.KVCache, kinds.ConcatenateKVCache)
"""Caches with a row for each token, which can be truncated to any number of rows."""
_SLACK = 2 * kinds.KVCache.step
"""Rows of a windowed cache that it may have allocated beyond its bound."""
_BITS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}

State = list[tuple[str, tuple[int, ...], bytes] | int | float | bool | str | None]
"""The leaves of a cache's `state`: type, shape and bytes of an array, or another value."""


class SequenceCaches:
    """Owns the caches of one sequence, as `mlx_lm.models.cache.make_prompt_cache` makes them.

    Those of `ROWS` are its cache rows; all others are its recurrent state: windows of the last rows as well, since what
    has left a window is lost.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.caches: list[Any] = []
        self.rows = 0
        """Tokens that were computed."""
        self.clear()

    def clear(self) -> None:
        """Replace all caches by empty ones."""
        self.caches, self.rows = kinds.make_prompt_cache(self._model), 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self.arrays)

    @property
    def arrays(self) -> list[mx.array]:
        """All arrays, which must be evaluated after a call."""
        return [leaf for each in _flat(self.caches) for leaf in _leaves(each.state) if isinstance(leaf, mx.array)]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, after at least one token."""
        rows = (cache for cache in _flat(self.caches) if isinstance(cache, ROWS))
        return sum(part.nbytes // part.shape[2] for cache in rows for part in (cache.keys, cache.values))

    def state_bytes(self, chunk: int, context: int) -> int:
        """Return the most bytes of `state`, after at least one token, for calls of up to `chunk` tokens and sequences
        of up to `context`; 0 if there is none, `UNBOUNDED` for a kind of cache whose bound is not known."""
        state = [cache for cache in _flat(self.caches) if not isinstance(cache, ROWS)]
        if not state:
            return 0
        total = len(self.state)
        for cache in state:
            if isinstance(cache, kinds.RotatingKVCache):
                most = cache.max_size
            elif isinstance(cache, kinds.ChunkedKVCache):
                most = cache.chunk_size
            elif isinstance(cache, kinds.ArraysCache):
                continue
            else:
                return UNBOUNDED
            rows = min(most + chunk, context) + _SLACK
            total += sum(part.nbytes // part.shape[2] for part in (cache.keys, cache.values)) * rows
        return total + 64 * len(state)  # the numbers beside the arrays grow

    def truncate(self, length: int) -> None:
        """Truncate the rows to the first `length`. The state is not."""
        for cache in _flat(self.caches):
            if isinstance(cache, ROWS):
                cache.trim(self.rows - length)
        self.rows = length

    @property
    def state(self) -> bytes:
        """All caches without those of `ROWS`, as bytes."""
        state = [
            [_to_bytes(leaf) for leaf in _leaves(cache.state)]
            for cache in _flat(self.caches)
            if not isinstance(cache, ROWS)
        ]
        return msgspec.msgpack.encode(state)

    @state.setter
    def state(self, data: bytes | memoryview) -> None:
        given = iter(msgspec.msgpack.decode(data, type=list[State], strict=True))
        for cache in _flat(self.caches):
            if not isinstance(cache, ROWS):
                leaves = iter([_from_bytes(leaf) for leaf in next(given)])
                cache.state = _with_leaves(cache.state, leaves)


def _flat(caches: Sequence[Any]) -> Iterator[Any]:
    """List caches, those in a `CacheList` one by one."""
    for cache in caches:
        if isinstance(cache, kinds.CacheList):
            yield from _flat(cache.caches)
        elif cache is not None:
            yield cache


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list | tuple):
        for each in tree:
            yield from _leaves(each)
    else:
        yield tree


def _with_leaves(tree: Any, leaves: Iterator[Any]) -> Any:
    """Return a tree of the same form with other leaves."""
    if isinstance(tree, list | tuple):
        return type(tree)([_with_leaves(each, leaves) for each in tree])
    return next(leaves)


def _to_bytes(leaf: Any) -> Any:
    if not isinstance(leaf, mx.array):
        return leaf
    bits = np.array(leaf.view(getattr(mx, np.dtype(_BITS[leaf.dtype.size]).name)))
    return str(leaf.dtype).rpartition(".")[2], leaf.shape, bits.tobytes()


def _from_bytes(leaf: Any) -> Any:
    if not isinstance(leaf, list | tuple):
        return leaf
    name, shape, data = leaf
    dtype = getattr(mx, name)
    return mx.array(np.frombuffer(data, _BITS[dtype.size]).reshape(shape)).view(dtype)
