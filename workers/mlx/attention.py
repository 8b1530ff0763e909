"""Attention of rows of several slots, behind mlx-lm's cache interface: a call for each group of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from workers.engine.states.ring_pieces import ring_pieces
from workers.mlx.kv import Slab
from workers.mlx.quantized_rows import dequantize_rows, quantize_rows
from workers.mlx.row_groups import Segment


class AttentionGroup:
    """Segments that attend in one call: a chunk of a prompt, or decode rows at adjacent places of a slab.

    Decode rows of several lengths are padded to the longest. On a CPU under Linux that does not change a bit: MLX adds
    one term after the other there, and masked terms are zeros.
    """

    def __init__(self, slab: Slab, segments: Sequence[Segment], *, by_kv_head: bool, kv_bits: int = 0) -> None:
        """`by_kv_head`: multiply the decode queries of heads that share a KV head as one matrix. `kv_bits`: rows are
        stored by `quantize_rows` if it is not 0."""
        self.slab = slab
        self._kv_bits = kv_bits
        self._by_kv_head = by_kv_head
        self.rows = sum(segment.count for segment in segments)
        self.places = slice(segments[0].place, segments[0].place + len(segments))
        self.end = max(segment.end for segment in segments)
        self._start = min(segment.start for segment in segments)
        self._alone = len(segments) == 1
        self._starts = mx.array([segment.start for segment in segments], dtype=mx.int32)
        self._ring_starts: dict[int, mx.array] = {0: self._starts}
        self._indices = mx.arange(self.places.start, self.places.stop)
        self._masks: dict[tuple[int | None, bool], mx.array] = {}
        ends = segments[0].ends if self._alone else None
        self._ends = None if ends is None else mx.array(ends, dtype=mx.int32)

    def write(self, layer: int, part: int, rows: mx.array) -> None:
        """Write keys (0) or values (1), [rows, kv_heads, 1, width]."""
        # An assignment is done in place when nothing else holds the buffer.
        buffer, ring = self.slab.buffers[layer][part], self.slab.rings[layer]
        if self._kv_bits:
            rows = quantize_rows(rows, self._kv_bits)
        if self._alone:
            sequence, at = _as_sequence(rows), 0
            for low, high in ring_pieces(self._start, self.end, ring):
                buffer[self.places, :, low:high] = sequence[:, :, at : (at := at + high - low)]
        else:
            if ring not in self._ring_starts:
                self._ring_starts[ring] = self._starts % ring
            buffer[self._indices, :, self._ring_starts[ring]] = rows[:, :, 0].astype(buffer.dtype)
        self.slab.buffers[layer][part] = buffer

    def attend(
        self,
        layer: int,
        queries: mx.array,
        window: int | None,
        scale: float,
        cap: float | None,
        sinks: mx.array | None = None,
        *,
        to_ends: bool = False,
    ) -> mx.array:
        """Attend to the rows of the slots: [rows, heads, 1, key width] -> [rows, heads, 1, value
        width]. `sinks` are logits, [heads],
        that take part in the sum of a head's softmax. With `to_ends`, a row of an image attends to the later ones of it
        as well."""
        to_ends = to_ends and self._ends is not None
        first_seen = 0 if window is None else max(0, self._start + 1 - window)
        keys, values = (self._rows(layer, part, first_seen) for part in (0, 1))
        if self._kv_bits:
            keys, values = (dequantize_rows(part, self._kv_bits, queries.dtype) for part in (keys, values))
        asked = _as_sequence(queries) if self._alone else queries
        if cap is not None:
            output = _capped(asked, keys, values, scale, cap, self._seen(window, first_seen, to_ends))
        else:
            mask, shape = self._mask(window, first_seen, to_ends), asked.shape
            mixed = (*shape[:3], values.shape[-1])
            if self._by_kv_head and shape[2] == 1 and sinks is None:
                # As queries of one head: MLX multiplies matrices then, where it would take each head's row by itself.
                asked = asked.reshape(shape[0], keys.shape[1], -1, shape[3])
            attend = mx.fast.scaled_dot_product_attention
            output = attend(asked, keys, values, scale=scale, mask=mask, sinks=sinks).reshape(mixed)
        return _as_sequence(output) if self._alone else output

    def _rows(self, layer: int, part: int, first: int) -> mx.array:
        """Return the keys (0) or values (1) of the slots from row `first` on, as they are stored."""
        buffer, pieces = self.slab.buffers[layer][part], ring_pieces(first, self.end, self.slab.rings[layer])
        rows = [buffer[self.places, :, low:high] for low, high in pieces]
        return rows[0] if len(rows) == 1 else mx.concatenate(rows, axis=2)

    def _mask(self, window: int | None, first_seen: int, to_ends: bool) -> mx.array | str | None:
        """The mask between queries and keys from `first_seen` on; None where all are seen."""
        if self._alone and self.rows == 1:
            return None
        if self._alone and not to_ends and (window is None or self.end <= window):
            return "causal"  # MLX aligns the last query with the last key, as a chunk behind a prefix needs
        return self._seen(window, first_seen, to_ends)

    def _seen(self, window: int | None, first_seen: int, to_ends: bool) -> mx.array:
        """The mask as booleans, [slots, 1, queries, keys]. Layers share it."""
        kind = (window, to_ends)
        if kind not in self._masks:
            positions = self._starts[:, None] + mx.arange(self.rows if self._alone else 1)
            queries, keys = positions[:, None, :, None], mx.arange(first_seen, self.end)
            ends = self._ends[:, None] if to_ends and self._ends is not None else queries + 1
            seen = keys < ends
            self._masks[kind] = seen if window is None else seen & (keys > queries - window)
        return self._masks[kind]


class LayerCache:
    """The cache that one layer of an mlx-lm model uses during one forward over the rows of several slots.

    The model computes on [rows, 1, hidden], so only attention and RoPE tell a decode row from a row of a prompt chunk.
    `offset` holds the RoPE position of every row, [rows] int32, or its positions in several axes, [axes, rows].
    """

    def __init__(
        self,
        layer: int,
        groups: Sequence[AttentionGroup],
        offset: mx.array,
        window: int | None = None,
        *,
        cpu: bool,
        queries: list[mx.array] | None = None,
        writes: bool = True,
        to_ends: bool = False,
    ) -> None:
        """`layer` is the place of the keys and values in the cache, which the layer only reads unless it `writes`.
        `window` is the attention window in rows, the query's own included; None is no window. `queries` is given
        those of the layer, scaled: float32 [rows, heads, head_dim]. With `to_ends`, rows of an image attend to the
        later ones of it."""
        self.offset = offset
        self._layer = layer
        self._groups = groups
        self._window = window
        self._cpu = cpu
        self._queries = queries
        self._writes = writes
        self._to_ends = to_ends

    def make_mask(self, *_: object, **__: object) -> None:
        """Return no mask: `attend` makes one for each group."""
        return

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple["FreshRows", "FreshRows"]:
        """Wrap the new rows, [rows, kv_heads, 1, head_dim], for `attend`.

        A model that does not call the attention that was bound to it fails on the wrapper, instead of attending to
        these rows only.
        """
        return FreshRows(self, keys), FreshRows(self, values)

    def attend(
        self,
        queries: mx.array,
        keys: mx.array | None,
        values: mx.array | None,
        scale: float,
        cap: float | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Write each group's rows and attend, causally, each row to its own slot: [rows, heads, 1, value width]. A
        layer that reads the keys and values of another one writes nothing, whatever it is given.

        With a `cap`, scores s become cap * tanh(s / cap). With `sinks`, the softmax of each head has a logit more.
        """
        if self._queries is not None:
            self._queries.append(queries[:, :, 0].astype(mx.float32) * scale)
        slices, first = [], 0
        for group in self._groups:
            slices.append(slice(first, first + group.rows))
            first += group.rows
        # All are written before any is read: a buffer that a reader holds would be copied by the next write.
        for part, given in enumerate((keys, values) if self._writes else ()):
            assert given is not None  # a layer that writes computes both
            for group, rows in zip(self._groups, slices, strict=True):
                group.write(self._layer, part, given[rows])
        outputs = [
            group.attend(self._layer, queries[rows], self._window, scale, cap, sinks, to_ends=self._to_ends)
            for group, rows in zip(self._groups, slices, strict=True)
        ]
        output = mx.concatenate(outputs) if len(outputs) > 1 else outputs[0]
        if self._cpu:
            mx.async_eval(output)  # type: ignore[no-untyped-call]  # while Python builds the next layer
        return output


@dataclass(frozen=True, slots=True)
class FreshRows:
    """New keys or values, passed from the cache to the attention."""

    cache: LayerCache
    rows: mx.array


def _capped(queries: mx.array, keys: mx.array, values: mx.array, scale: float, cap: float, seen: mx.array) -> mx.array:
    """Attention with capped scores, as in transformers' Gemma 2: queries [slots, heads, n, head_dim], keys and values
    [slots, kv_heads, m, head_dim], seen [slots, 1, n, m]."""
    slots, heads, count, width = queries.shape
    mixed = (slots, heads, count, values.shape[-1])
    grouped = queries.reshape(slots, keys.shape[1], -1, count, width)
    scores = (grouped * scale) @ keys[:, :, None].swapaxes(-1, -2)
    scores = mx.where(seen[:, None], mx.tanh(scores / cap) * cap, -mx.inf)
    output = mx.softmax(scores, axis=-1, precise=True) @ values[:, :, None]
    return output.reshape(mixed)


def _as_sequence(rows: mx.array) -> mx.array:
    """[rows, heads, 1, width] <-> [1, heads, rows, width]."""
    return rows.transpose(2, 1, 0, 3)
