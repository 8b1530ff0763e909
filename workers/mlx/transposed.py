"""Matrices that are stored transposed, for float32 on a CPU under Linux.

MLX's wheel for Linux links the reference BLAS. With the weights as checkpoints have them, [out, in], it computes one
dot product after the other, each a chain of dependent additions. With [in, out] it adds a row of the matrix to all
outputs at a time: almost twice as fast, and bit-identical, since each output is the sum of the same terms in the same
order.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten


class TransposedLinear(nn.Module):  # type: ignore[misc]
    """mlx's `Linear` with the weight [in, out]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = mx.contiguous(linear.weight.T)
        if "bias" in linear:
            self.bias = linear.bias

    def __call__(self, x: mx.array) -> mx.array:
        out: mx.array = x @ self.weight
        return out + self.bias if "bias" in self else out


class TransposedEmbedding(nn.Module):  # type: ignore[misc]
    """mlx's `Embedding` with the weight [in, out], for an embedding that is the head as well."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = mx.contiguous(embedding.weight.T)

    def __call__(self, tokens: mx.array) -> mx.array:
        embedded: mx.array = mx.moveaxis(mx.take(self.weight, tokens, axis=1), 0, -1)
        return mx.contiguous(embedded)

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits."""
        logits: mx.array = x @ self.weight
        return logits


def transpose_matrices(model: Any) -> None:
    """Replace the plain float32 matrices of a lazily read model, and the embedding if it is the head as well."""
    tied = getattr(model, "lm_head", None) is None
    replaced: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        if type(module) is nn.Linear and module.weight.dtype == mx.float32:
            replaced.append((name, TransposedLinear(module)))
        elif tied and type(module) is nn.Embedding and module.weight.dtype == mx.float32:
            replaced.append((name, TransposedEmbedding(module)))
    model.update_modules(tree_unflatten(replaced))
