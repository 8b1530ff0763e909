"""Gives a language model of mlx-lm what the rows of images need of it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Chunk
from workers.mlx.given_rows import GivenColumns, GivenRows
from workers.mlx.modules.parts import ExactlyScaled
from workers.mlx.rotary import Rotary, axes_of_angles
from workers.vision.config import VisionConfig

AXES = 3


class ScaledRows(nn.Module):  # type: ignore[misc]
    """An embedding with the factor that the decoder applies in mlx-lm.

    Rows of images have it in float32: applied behind the rounding to the type of the model, it would round them again.
    """

    def __init__(self, embedding: nn.Module, scale: float) -> None:
        super().__init__()
        self.embedding = embedding
        self._scale = scale

    def __call__(self, tokens: mx.array) -> mx.array:
        rows: mx.array = self.embedding(tokens)
        return rows * self._scale

    def as_linear(self, x: mx.array) -> mx.array:
        """Logits of an embedding that is the head as well."""
        logits: mx.array = self.embedding.as_linear(x)
        return logits


class PaddedRows(nn.Module):  # type: ignore[misc]
    """A table that has the row of the padding token where a token is -1, as in transformers."""

    def __init__(self, table: nn.Module, padding: int) -> None:
        super().__init__()
        self.table = table
        self._padding = padding

    def __call__(self, tokens: mx.array) -> mx.array:
        rows: mx.array = self.table(mx.where(tokens < 0, self._padding, tokens))
        return rows


def _separate_gemma3(decoder: Any) -> float:
    scale = decoder.args.hidden_size**0.5

    class Unscaled:
        """Fields of which the decoder reads only this one, for its factor."""

        hidden_size = 1

    decoder.args = Unscaled()
    return _rounded(scale, mx.bfloat16)


def _separate_gemma4(decoder: Any) -> float:
    scale: float = decoder.embed_scale
    decoder.embed_scale = 1.0
    return scale


_SEPARATE: Mapping[str, Callable[[Any], float]] = {
    "gemma3_text": _separate_gemma3,
    "gemma4_text": _separate_gemma4,
    "gemma4_unified_text": _separate_gemma4,
}
"""Take the factor of embeddings out of a decoder and return it, by family."""


def see_images(model: Any, config: ModelConfig, vision: VisionConfig, given: GivenColumns, padding: int = 0) -> float:
    """Prepare a loaded model for chunks with rows of images: their embeddings, deep stack and positions in three axes.
    Returns the factor by which it multiplies embeddings, those of images too. The bits of text stay.

    `padding` is the token whose embeddings of layers the rows of images have (Gemma 4).
    """
    decoder = model.model
    factors = _separate_factors(decoder, config)
    decoder.embed_tokens = GivenRows(decoder.embed_tokens, given, factors)
    if config.per_layer is not None:
        decoder.embed_tokens_per_layer = PaddedRows(decoder.embed_tokens_per_layer, padding)
    for number in range(len(vision.taps)):
        _add_given(model.layers[number], given, number)
    if vision.mrope:
        axes = axes_of_angles(vision.mrope, interleaved=vision.mrope_interleaved)
        for module in model.modules():
            rope = getattr(module, "rope", None)
            if isinstance(rope, Rotary):
                rope.divide(axes)
    return math.prod(factors)


def _separate_factors(decoder: Any, config: ModelConfig) -> list[float]:
    """Let the embedding of a decoder apply its factors, and return them in the type of the model."""
    separate = _SEPARATE.get(config.family)
    if separate is None:
        return []
    embedding, dtype = decoder.embed_tokens, decoder.norm.weight.dtype
    factors = [embedding.factor] if isinstance(embedding, ExactlyScaled) and dtype != mx.bfloat16 else []
    scale = separate(decoder)
    decoder.embed_tokens = ScaledRows(embedding, scale)
    return [*factors, _rounded(scale, dtype)]


def _rounded(value: float, dtype: mx.Dtype) -> float:
    return float(np.array(mx.array(value, dtype).astype(mx.float32)))


def _add_given(layer: nn.Module, given: GivenColumns, number: int) -> None:
    """Add given columns to the output of a layer, whose modules keep their names."""
    kind: Any = type(layer)

    class DeepStackLayer(kind):  # type: ignore[misc]
        def __call__(self, *arguments: Any, **options: Any) -> mx.array:
            return given.added(super().__call__(*arguments, **options), number)

    layer.__class__ = DeepStackLayer


def check_image_rows(vision: VisionConfig | None, chunks: Sequence[Chunk]) -> None:
    """Raise `ValueError` for positions in axes, or ends of images, that a chunk of the model cannot have."""
    for chunk in chunks:
        count = len(chunk.tokens)
        if chunk.axes is not None and (vision is None or not vision.mrope):
            raise ValueError("axes: the model has positions in one axis")
        if chunk.axes is not None and (chunk.axes.shape != (AXES, count) or chunk.axes.min() < 0):
            raise ValueError(f"axes: give {AXES} positions of each of {count} tokens, from 0 on")
        if chunk.ends is None:
            continue
        if vision is None or vision.bidirectional == "none":
            raise ValueError("ends: the model attends to earlier rows only")
        rows = np.arange(chunk.start, chunk.start + count)
        if len(chunk.ends) != count or np.any(np.array(chunk.ends) <= rows) or max(chunk.ends) > rows[-1] + 1:
            raise ValueError(f"ends: give {count}, each behind its row and up to {rows[-1] + 1}")


def positions_of(chunks: Sequence[Chunk]) -> mx.array:
    """Return the positions of the rows of chunks, int32 [rows]; [3, rows] if any chunk has them in axes."""
    plain = [np.array([chunk.position_at(offset) for offset in range(len(chunk.tokens))], np.int32) for chunk in chunks]
    if all(chunk.axes is None for chunk in chunks):
        return mx.array(np.concatenate(plain))
    parts = [
        np.broadcast_to(one, (AXES, len(one))) if chunk.axes is None else chunk.axes
        for chunk, one in zip(chunks, plain, strict=True)
    ]
    return mx.array(np.concatenate(parts, axis=1).astype(np.int32))
