"""Rows of embeddings that a request or an image gives in place of tokens."""

from collections.abc import Sequence
from typing import Any, Self

import mlx.core as mx
import mlx.nn as nn

from workers.mlx.modules.parts import ExactlyScaled, Multiplied


class GivenColumns:
    """The given rows of the next forward, split into columns of the hidden size: embeddings, then what is added to the
    output of each of the first layers (deep stack)."""

    def __init__(self, hidden: int) -> None:
        self._hidden = hidden
        self._rows: mx.array | None = None
        self._places: mx.array | None = None

    def give(self, rows: mx.array, places: mx.array) -> None:
        """Take rows, [tokens, width], of which those at `places`, booleans [tokens], are given."""
        self._rows, self._places = rows, places[:, None, None]

    def clear(self) -> None:
        """All tokens of the next forward have rows of their own."""
        self._rows = self._places = None

    @property
    def any(self) -> bool:
        """A row of the next forward is given."""
        return self._places is not None

    def replaced(self, known: mx.array, factors: Sequence[float] = ()) -> mx.array:
        """Replace embeddings by those that are given, times `factors` in float32: [tokens, 1, hidden]."""
        if self._places is None:
            return known
        given = self._column(0)
        for factor in factors:
            given = given * factor
        return mx.where(self._places, given.astype(known.dtype), known)

    def added(self, known: mx.array, layer: int) -> mx.array:
        """Add to the output of one of the first layers, [tokens, 1, hidden], where rows are given."""
        if self._places is None:
            return known
        return mx.where(self._places, known + self._column(1 + layer).astype(known.dtype), known)

    def _column(self, number: int) -> mx.array:
        assert self._rows is not None  # it has places
        first = number * self._hidden
        return self._rows[:, None, first : first + self._hidden]


class GivenRows(nn.Module):  # type: ignore[misc]
    """A table of embeddings, or the given row where a token is -1."""

    def __init__(self, table: nn.Module, given: GivenColumns, factors: Sequence[float] = ()) -> None:
        """`factors` are those by which `table` multiplies its rows, one after the other."""
        super().__init__()
        self.table = table
        self._given = given
        self._factors = tuple(factors)

    @classmethod
    def under(cls, model: Any, given: GivenColumns) -> Self:
        """Put it in place of a model's table, below what scales the rows of that."""
        holder, name = model, "embed_tokens"
        while isinstance(getattr(holder, name), ExactlyScaled | Multiplied):
            holder = getattr(holder, name)
            name = "embedding" if isinstance(holder, ExactlyScaled) else "module"
        rows = cls(getattr(holder, name), given)
        setattr(holder, name, rows)
        return rows

    def __call__(self, tokens: mx.array) -> mx.array:
        if not self._given.any:
            known: mx.array = self.table(tokens)
            return known
        return self._given.replaced(self.table(mx.maximum(tokens, 0)), self._factors)

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits of an embedding that is the head as well."""
        logits: mx.array = self.table.as_linear(x)
        return logits
