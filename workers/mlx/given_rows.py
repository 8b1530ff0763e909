"""Rows of embeddings that a request gives in place of tokens."""

from typing import Any, Self

import mlx.core as mx
import mlx.nn as nn

from workers.mlx.modules.parts import ExactlyScaled, Multiplied


class GivenRows(nn.Module):  # type: ignore[misc]
    """A table of embeddings, or the given row where a token is -1."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table
        self.given: mx.array | None = None
        """A row for each token of the next forward, [tokens, width]; None if all have their own."""

    @classmethod
    def under(cls, model: Any) -> Self:
        """Put it in place of a model's table, below what scales the rows of that."""
        holder, name = model, "embed_tokens"
        while isinstance(getattr(holder, name), ExactlyScaled | Multiplied):
            holder = getattr(holder, name)
            name = "embedding" if isinstance(holder, ExactlyScaled) else "module"
        rows = cls(getattr(holder, name))
        setattr(holder, name, rows)
        return rows

    def __call__(self, tokens: mx.array) -> mx.array:
        if self.given is None:
            known: mx.array = self.table(tokens)
            return known
        known = self.table(mx.maximum(tokens, 0))
        given = self.given.reshape(known.shape).astype(known.dtype)
        return mx.where((tokens < 0)[..., None], given, known)

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits of an embedding that is the head as well."""
        logits: mx.array = self.table.as_linear(x)
        return logits
