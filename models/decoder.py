"""Greedy decoding of a shipped checkpoint in plain numpy. It shares no code with the training."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name bfloat16, by which safetensors asks for it)
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

Array = NDArray[np.float32]


def round_to_bfloat16(x: Array) -> Array:
    """Round to the nearest bfloat16 values (ties to even), as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


@dataclass(slots=True)
class KVCache:
    """Keys and values of every layer, each [positions, kv_heads, head_dim]. Only `Decoder.logits` extends it."""

    keys: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)
    length: int = 0


class Decoder:
    """A LlamaForCausalLM checkpoint with tied embeddings.

    With `bfloat16`, the input and output of every linear layer are rounded to that type.
    """

    def __init__(self, directory: Path, *, bfloat16: bool = False) -> None:
        config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self._layers: int = config["num_hidden_layers"]
        self._heads: int = config["num_attention_heads"]
        self._kv_heads: int = config["num_key_value_heads"]
        self._head_dim: int = config["head_dim"]
        self._eps: float = config["rms_norm_eps"]
        half = self._head_dim // 2
        self._frequencies: Array = np.float32(config["rope_theta"]) ** -(np.arange(half, dtype=np.float32) / half)
        self._bfloat16 = bfloat16
        self._weights = read_weights(directory)

    def generate(self, prompt: Sequence[int], limit: int, stops: Collection[int]) -> list[int]:
        """Return up to `limit` tokens, each the most likely one. A token of `stops` is the last one of the reply."""
        cache, given = KVCache(), list(prompt)
        reply: list[int] = []
        while len(reply) < limit:
            token = int(np.argmax(self.logits(given, cache)[-1]))
            reply.append(token)
            if token in stops:
                break
            given = [token]
        return reply

    def predictions(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """Return the most likely next token after each of the given ones, [T]."""
        best: NDArray[np.int64] = np.argmax(self.logits(tokens, KVCache()), -1)
        return best

    def logits(self, tokens: Sequence[int], cache: KVCache) -> Array:
        """Return the logits [T, vocabulary] of tokens that follow those in the cache, and add them to the cache."""
        embedding = self._weights["model.embed_tokens.weight"]
        position = np.arange(cache.length, cache.length + len(tokens), dtype=np.float32)
        angle = position[:, None, None] * self._frequencies
        rotation = (np.cos(angle), np.sin(angle))
        x = embedding[np.asarray(tokens)]
        for layer in range(self._layers):
            block = f"model.layers.{layer}."
            x = x + self._attend(layer, self._norm(x, block + "input_layernorm"), rotation, cache)
            y = self._norm(x, block + "post_attention_layernorm")
            gate = self._linear(y, block + "mlp.gate_proj")
            gate = (gate / (1.0 + np.exp(-gate))).astype(np.float32)
            x = x + self._linear(gate * self._linear(y, block + "mlp.up_proj"), block + "mlp.down_proj")
            x = self._rounded(x)
        cache.length += len(tokens)
        return self._linear(self._norm(x, "model.norm"), "model.embed_tokens")

    def _attend(self, layer: int, x: Array, rotation: tuple[Array, Array], cache: KVCache) -> Array:
        block = f"model.layers.{layer}.self_attn."
        count = len(x)
        q = self._rotate(self._linear(x, block + "q_proj").reshape(count, self._heads, -1), rotation)
        k = self._rotate(self._linear(x, block + "k_proj").reshape(count, self._kv_heads, -1), rotation)
        v = self._linear(x, block + "v_proj").reshape(count, self._kv_heads, -1)
        if layer < len(cache.keys):
            k, v = np.concatenate((cache.keys[layer], k)), np.concatenate((cache.values[layer], v))
            cache.keys[layer], cache.values[layer] = k, v
        else:
            cache.keys.append(k)
            cache.values.append(v)
        grouped = q.reshape(count, self._kv_heads, -1, self._head_dim) * np.float32(self._head_dim**-0.5)
        scores = np.einsum("tkgd,skd->kgts", grouped, k, optimize=True)
        scores = np.where(np.arange(len(k)) <= np.arange(len(k) - count, len(k))[:, None], scores, np.float32(-1e9))
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        mixed = np.einsum("kgts,skd->tkgd", share, v, optimize=True).reshape(count, -1)
        return self._linear(mixed, block + "o_proj")

    def _rotate(self, x: Array, rotation: tuple[Array, Array]) -> Array:
        cos, sin = rotation
        first, second = np.split(x, 2, -1)
        return self._rounded(np.concatenate((first * cos - second * sin, second * cos + first * sin), -1))

    def _norm(self, x: Array, name: str) -> Array:
        scale = 1.0 / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.float32(self._eps))
        return self._rounded((x * scale * self._weights[name + ".weight"]).astype(np.float32))

    def _linear(self, x: Array, name: str) -> Array:
        return self._rounded(self._rounded(x) @ self._weights[name + ".weight"].T)

    def _rounded(self, x: Array) -> Array:
        return round_to_bfloat16(x) if self._bfloat16 else x


def read_weights(directory: Path) -> dict[str, Array]:
    """Read every tensor of model.safetensors as float32."""
    with safe_open(directory / "model.safetensors", framework="numpy") as checkpoint:
        return {name: checkpoint.get_tensor(name).astype(np.float32) for name in checkpoint.keys()}  # noqa: SIM118
