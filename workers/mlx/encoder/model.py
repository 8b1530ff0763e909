"""An encoder in MLX: the arrays of a checkpoint, and the computation of padded sequences."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import Activation
from workers.checkpoints.encoders.config import EncoderConfig
from workers.checkpoints.encoders.tensors import TABLES, encoder_tensors, prefix_of
from workers.checkpoints.weight_size import QUANTIZED_GROUP
from workers.checkpoints.weights import Weights
from workers.load_options import Progress
from workers.precision import Quantize


def _gelu(x: mx.array) -> mx.array:
    return x * (1 + mx.erf(x * 0.5**0.5)) / 2


def _gelu_tanh(x: mx.array) -> mx.array:
    return x * (1 + mx.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x * x * x))) / 2


# Written out: those of `mlx.nn` are compiled, on a CPU by a C++ compiler.
ACTIVATIONS: Mapping[Activation, Callable[[mx.array], mx.array]] = {
    "silu": lambda x: x * mx.sigmoid(x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}


@dataclass(frozen=True, slots=True)
class EncoderMatrix:
    """A matrix of a linear layer, [inputs, outputs], or quantized."""

    array: mx.array
    bias: mx.array | None
    scales: mx.array | None = None
    biases: mx.array | None = None
    bits: int = 0

    def __call__(self, x: mx.array) -> mx.array:
        """Multiply rows by the matrix, and add its bias: float32."""
        if self.scales is None:
            out = (x @ self.array).astype(mx.float32)
        else:
            out = mx.quantized_matmul(
                x, self.array, self.scales, self.biases, transpose=True, group_size=QUANTIZED_GROUP, bits=self.bits
            ).astype(mx.float32)
        return out if self.bias is None else out + self.bias

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays."""
        return sum(each.nbytes for each in (self.array, self.bias, self.scales, self.biases) if each is not None)


@dataclass(frozen=True, slots=True)
class MlxEncoder:
    """The arrays of an encoder. The residual stream and the norms are float32, operands of products of `dtype`."""

    config: EncoderConfig
    dtype: mx.Dtype
    arrays: Mapping[str, mx.array]
    """Tables in `dtype`, norms in float32."""
    matrices: Mapping[str, EncoderMatrix]
    frequencies: tuple[NDArray[np.float32], ...]
    """Radians per position of each rotary embedding, times no factor: encoders have none."""

    @classmethod
    def load(
        cls,
        config: EncoderConfig,
        weights: Weights,
        dtype: mx.Dtype,
        quantize: Quantize,
        context: int,
        progress: Progress,
    ) -> "MlxEncoder":
        """Read the tensors of a checkpoint. Raises `CheckpointError`."""
        tensors = list(encoder_tensors(config, prefix_of(config, weights)))
        arrays: dict[str, mx.array] = {}
        matrices: dict[str, EncoderMatrix] = {}
        values: dict[str, mx.array] = {}
        for done, tensor in enumerate(tensors):
            progress("weights", done, len(tensors))
            parts = [weights.take(*source) for source in tensor.sources]
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            if tensor.orders and (order := tensor.orders[0]) is not None:
                whole = whole[order.rows()]
            kind = dtype if tensor.matrix else mx.float32
            values[tensor.name] = mx.array(np.asarray(whole, np.float32) + np.float32(tensor.offset)).astype(kind)
        for name, value in values.items():
            if value.ndim == 2 and name not in TABLES:
                matrices[name] = _matrix(value, values.get(f"{name}_bias"), quantize)
                mx.eval([each for each in _arrays(matrices[name]) if each is not None])
            else:
                mx.eval(value)
                arrays[name] = value
        progress("weights", len(tensors), len(tensors))
        return cls(config, dtype, arrays, matrices, tuple(rope.frequencies(context)[0] for rope in config.ropes))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        both = sum(each.nbytes for each in self.arrays.values())
        return both + sum(each.nbytes for each in self.matrices.values())

    def __call__(self, tokens: NDArray[np.int32], types: NDArray[np.int32], lengths: NDArray[np.int32]) -> mx.array:
        """Compute sequences, int32 [batch, tokens] with padding behind their `lengths`: float32
        [batch, tokens, hidden]."""
        config, length = self.config, tokens.shape[1]
        x = self._embeddings(tokens, types)
        if config.embedding_norm:
            h = x = self._normed(x, "norm_embedding")
        else:
            h = self._normed(x, "0.norm_attention")
        masks = self._masks(lengths, length)
        angles = [self._angles(frequencies, length) for frequencies in self.frequencies]
        for number, layer in enumerate(config.plan):
            place = f"{number}."
            rope = None if layer.rope is None else angles[layer.rope]
            delta = self._attention(h, place, rope, masks[layer.window])
            if config.pre_norm:
                x = x + self._around(delta, f"{place}norm_mixed")
                x = x + self._around(self._mlp(self._normed(x, f"{place}norm_mlp"), place), f"{place}norm_up")
                last = number + 1 == len(config.plan)
                h = self._normed(x, "norm" if last else f"{number + 1}.norm_attention")
            else:
                x = self._normed(x + delta, f"{place}norm_attention")
                h = x = self._normed(x + self._mlp(x, place), f"{place}norm_mlp")
        return h

    def _embeddings(self, tokens: NDArray[np.int32], types: NDArray[np.int32]) -> mx.array:
        config = self.config
        x = self.arrays["embedding"][mx.array(tokens)].astype(mx.float32)
        if config.embedding_scale != 1:
            x = x * mx.array(config.embedding_scale, self.dtype).astype(mx.float32)
        if config.table_positions:
            at = np.minimum(np.arange(tokens.shape[1]) + config.position_offset, config.table_positions - 1)
            x = x + self.arrays["positions"][mx.array(at.astype(np.int32))].astype(mx.float32)
        if config.token_types:
            x = x + self.arrays["token_types"][mx.array(types)].astype(mx.float32)
        return x

    def _around(self, delta: mx.array, name: str) -> mx.array:
        """Return the norm of what a part of a layer adds, if it has one."""
        return self._normed(delta, name) if self.config.norms_around else delta

    def _normed(self, x: mx.array, name: str) -> mx.array:
        if self.config.rms:
            return mx.fast.rms_norm(x, self.arrays[name], self.config.eps)
        return mx.fast.layer_norm(x, self.arrays[name], self.arrays.get(f"{name}_bias"), self.config.eps)

    def _masks(self, lengths: NDArray[np.int32], length: int) -> dict[int | None, mx.array | None]:
        """Return the mask of each window, bool [batch, 1, tokens, tokens]; None where all tokens are seen."""
        at, masks = np.arange(length), dict[int | None, mx.array | None]()
        for window in {layer.window for layer in self.config.plan}:
            seen = np.broadcast_to(at < lengths[:, None, None], (len(lengths), length, length))
            if window is not None:
                # A padding row sees something, as its softmax would be of nothing otherwise.
                seen = (seen & (np.abs(at[:, None] - at) <= window)) | np.eye(length, dtype=bool)
            masks[window] = None if seen.all() else mx.array(seen[:, None])
        return masks

    def _angles(self, frequencies: NDArray[np.float32], length: int) -> tuple[mx.array, mx.array]:
        angles = np.arange(length, dtype=np.float32)[:, None] * frequencies
        return mx.array(np.cos(angles)), mx.array(np.sin(angles))

    def _attention(
        self, h: mx.array, place: str, angles: tuple[mx.array, mx.array] | None, mask: mx.array | None
    ) -> mx.array:
        config = self.config
        batch, length, _ = h.shape
        qkv = self.matrices[f"{place}qkv"](h.astype(self.dtype))
        ends = [config.query_width, config.query_width + config.kv * config.head_dim]
        parts = mx.split(qkv, ends, axis=-1)
        q, k, v = (part.reshape(batch, length, -1, config.head_dim).swapaxes(1, 2) for part in parts)
        if config.head_norms:
            q, k = self._normed(q, f"{place}norm_queries"), self._normed(k, f"{place}norm_keys")
        if angles is not None:
            q, k = _rotated(q, *angles), _rotated(k, *angles)
        q, k, v = (each.astype(self.dtype) for each in (q, k, v))
        mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=config.attention_scale, mask=mask)
        mixed = mixed.swapaxes(1, 2).reshape(batch, length, config.query_width)
        return self.matrices[f"{place}attention_out"](mixed)

    def _mlp(self, x: mx.array, place: str) -> mx.array:
        up = self.matrices[f"{place}up"](x.astype(self.dtype))
        activation = ACTIVATIONS[self.config.activation]
        if self.config.gated:
            gate, up = mx.split(up, 2, axis=-1)
            up = activation(gate) * up
        else:
            up = activation(up)
        return self.matrices[f"{place}down"](up.astype(self.dtype))


def _matrix(value: mx.array, bias: mx.array | None, quantize: Quantize) -> EncoderMatrix:
    if quantize == "none" or value.shape[1] % QUANTIZED_GROUP:
        return EncoderMatrix(mx.contiguous(value.T), bias)
    bits = 8 if quantize == "int8" else 4
    words, scales, biases = mx.quantize(value, group_size=QUANTIZED_GROUP, bits=bits)
    return EncoderMatrix(words, bias, scales, biases, bits)


def _arrays(matrix: EncoderMatrix) -> list[Any]:
    return [matrix.array, matrix.bias, matrix.scales, matrix.biases]


def _rotated(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """RoPE on x, [batch, heads, tokens, lanes]: pairs are the halves of a head."""
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
