"""The KV cache of one slot, whose buffers grow with the sequence, behind mlx-lm's cache interface."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

GROWTH = 256
"""Rows by which a slot's buffers grow: one copy every 256 tokens, and at most 255 unused rows."""


class SlotKV:
    """Keys and values of one sequence in every layer: [1, kv_heads, capacity, head_dim] each.

    Slots share no buffer, so no slot can read another's rows, and a write reuses the buffer in place. The first
    `length` rows are filled; the runner sets it after each forward. Rows behind it are never attended to.
    """

    def __init__(self, layers: int) -> None:
        self.length = 0
        self._keys: list[mx.array | None] = [None] * layers
        self._values: list[mx.array | None] = [None] * layers

    @property
    def arrays(self) -> list[mx.array]:
        """The buffers, which must be evaluated after a write."""
        return [array for array in (*self._keys, *self._values) if array is not None]

    @property
    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in self.arrays)

    def prefix(self, length: int) -> "SlotKV":
        """Copy the first `length` rows into a new slot and evaluate them. Rows behind them are zero."""
        copy = SlotKV(len(self._keys))
        if length:
            copy._keys = [_take(held, length) for held in self._keys]
            copy._values = [_take(held, length) for held in self._values]
            mx.eval(copy.arrays)
        copy.length = length
        return copy

    def write(self, layer: int, start: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Put [1, kv_heads, n, head_dim] at rows `start ..` and return the layer's rows up to the last of them."""
        end = start + keys.shape[2]
        held_keys = self._keys[layer] = _put(self._keys[layer], start, end, keys)
        held_values = self._values[layer] = _put(self._values[layer], start, end, values)
        return held_keys[..., :end, :], held_values[..., :end, :]


def _put(buffer: mx.array | None, start: int, end: int, new: mx.array) -> mx.array:
    held = 0 if buffer is None else buffer.shape[2]
    if buffer is None or end > held:
        grown = -(-end // GROWTH) * GROWTH
        _, heads, _, width = new.shape
        more = mx.zeros((1, heads, grown - held, width), dtype=new.dtype)
        buffer = more if buffer is None else mx.concatenate([buffer, more], axis=2)
    # An assignment to a slice is done in place when nothing else holds the buffer.
    buffer[..., start:end, :] = new
    return buffer


def _take(buffer: mx.array | None, length: int) -> mx.array | None:
    """Copy the first rows of a buffer into a new one, with zeros behind them."""
    return None if buffer is None else _put(None, 0, length, buffer[..., :length, :])


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one slot in a forward: `count` tokens that go to cache rows `start ..`."""

    slot: SlotKV
    start: int
    count: int


class LayerCache:
    """The cache that one layer of an mlx-lm model uses during one forward over the rows of several slots.

    The model computes on [rows, 1, hidden], so only attention and RoPE tell a decode row from a row of a prompt chunk.
    `offset` holds the RoPE position of every row, [rows] int32.
    """

    def __init__(self, layer: int, segments: Sequence[Segment], offset: mx.array, window: int | None = None) -> None:
        """`window` is the attention window in rows, the query's own included; None is no window."""
        self.offset = offset
        self._layer = layer
        self._segments = segments
        self._window = window

    def make_mask(self, *_: Any, **__: Any) -> None:
        """Return no mask: `attend` makes one for each segment."""
        return

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple["FreshRows", "FreshRows"]:
        """Wrap the new rows, [rows, kv_heads, 1, head_dim], for `attend`.

        A model that does not call the attention that was bound to it fails on the wrapper, instead of attending to
        these rows only.
        """
        return FreshRows(self, keys), FreshRows(self, values)

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, cap: float | None = None
    ) -> mx.array:
        """Write each segment's rows and attend, causally, to its own slot: [rows, heads, 1, head_dim].

        With a `cap`, scores s become cap * tanh(s / cap).
        """
        outputs, first = [], 0
        for segment in self._segments:
            rows = slice(first, first + segment.count)
            first += segment.count
            held = segment.slot.write(self._layer, segment.start, _as_sequence(keys[rows]), _as_sequence(values[rows]))
            first_seen = 0 if self._window is None else max(0, segment.start + 1 - self._window)
            seen_keys, seen_values = (part[..., first_seen:, :] for part in held)
            asked = _as_sequence(queries[rows])
            if cap is None:
                mask = self._mask(segment, first_seen)
                output = mx.fast.scaled_dot_product_attention(asked, seen_keys, seen_values, scale=scale, mask=mask)
            else:
                output = _capped(asked, seen_keys, seen_values, scale, cap, self._seen(segment, first_seen))
            outputs.append(_as_sequence(output))
        return mx.concatenate(outputs) if len(outputs) > 1 else outputs[0]

    def _mask(self, segment: Segment, first_seen: int) -> mx.array | str | None:
        """The mask between a segment's queries and the slot's keys from `first_seen` on; None where all are seen."""
        if segment.count == 1:
            return None
        end = segment.start + segment.count
        if self._window is None or end <= self._window:
            return "causal"  # MLX aligns the last query with the last key, as a chunk behind a prefix needs
        return self._seen(segment, first_seen)

    def _seen(self, segment: Segment, first_seen: int) -> mx.array:
        """The mask as booleans, [queries, keys]."""
        end = segment.start + segment.count
        queries, keys = mx.arange(segment.start, end)[:, None], mx.arange(first_seen, end)[None]
        seen = keys <= queries
        return seen if self._window is None else seen & (keys > queries - self._window)


@dataclass(frozen=True, slots=True)
class FreshRows:
    """New keys or values, passed from the cache to the attention."""

    cache: LayerCache
    rows: mx.array


def _capped(queries: mx.array, keys: mx.array, values: mx.array, scale: float, cap: float, seen: mx.array) -> mx.array:
    """Attention with capped scores, as in transformers' Gemma 2: queries [1, heads, n, head_dim], keys and values
    [1, kv_heads, m, head_dim]."""
    _, heads, count, width = queries.shape
    grouped = queries.reshape(1, keys.shape[1], -1, count, width)
    scores = (grouped * scale) @ keys[:, :, None].swapaxes(-1, -2)
    scores = mx.where(seen, mx.tanh(scores / cap) * cap, -mx.inf)
    output = mx.softmax(scores, axis=-1, precise=True) @ values[:, :, None]
    return output.reshape(1, heads, count, width)


def _as_sequence(rows: mx.array) -> mx.array:
    """[rows, heads, 1, width] <-> [1, heads, rows, width]."""
    return rows.transpose(2, 1, 0, 3)
