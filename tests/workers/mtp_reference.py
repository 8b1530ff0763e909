"""MiMo and its head for multi-token prediction in numpy, for a checkpoint with plain weights, written from the model's
code (https://huggingface.co/XiaomiMiMo/MiMo-7B-RL)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import open_weights

Array = NDArray[np.float64]


class MtpReference:
    """Computes whole sequences in float64, without a cache."""

    def __init__(self, path: Path) -> None:
        self._config: dict[str, Any] = json.loads((path / "config.json").read_text())
        self._weights = {name: tensor.astype(np.float64) for name, tensor in open_weights(path).items()}

    def hidden(self, tokens: tuple[int, ...]) -> Array:
        """The hidden states behind the last layer, before the norm."""
        x = self._weights["model.embed_tokens.weight"][list(tokens)]
        for layer in range(self._config["num_hidden_layers"]):
            x = self._layer(f"model.layers.{layer}.", x)
        return x

    def logits(self, tokens: tuple[int, ...]) -> Array:
        """The logits of the model for each token."""
        return self._norm("model.norm", self.hidden(tokens)) @ self._head.T

    def mtp(self, hidden: Array, following: tuple[int, ...]) -> tuple[Array, Array]:
        """The logits of the head for hidden states and the tokens after them, and its own hidden states."""
        prefix = "model.mtp_layers.0."
        embedded = self._norm(prefix + "token_layernorm", self._weights["model.embed_tokens.weight"][list(following)])
        both = np.concatenate([self._norm(prefix + "hidden_layernorm", hidden), embedded], axis=-1)
        x = self._layer(prefix, both @ self._weights[prefix + "input_proj.weight"].T)
        out = self._norm(prefix + "final_layernorm", x)
        return out @ self._head.T, out

    @property
    def _head(self) -> Array:
        return self._weights.get("lm_head.weight", self._weights["model.embed_tokens.weight"])

    def _norm(self, name: str, x: Array) -> Array:
        unit: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + self._config["rms_norm_eps"])
        return unit * self._weights[f"{name}.weight"]

    def _linear(self, name: str, x: Array) -> Array:
        out: Array = x @ self._weights[f"{name}.weight"].T
        return out + self._weights.get(f"{name}.bias", 0.0)

    def _layer(self, prefix: str, x: Array) -> Array:
        x = x + self._attention(prefix + "self_attn.", self._norm(prefix + "input_layernorm", x))
        h = self._norm(prefix + "post_attention_layernorm", x)
        gate, up = (self._linear(f"{prefix}mlp.{name}_proj", h) for name in ("gate", "up"))
        return x + self._linear(prefix + "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)

    def _attention(self, prefix: str, h: Array) -> Array:
        heads, kv_heads = self._config["num_attention_heads"], self._config["num_key_value_heads"]
        rows, lanes = len(h), self._config["head_dim"]
        q, k, v = (self._linear(f"{prefix}{name}_proj", h).reshape(rows, -1, lanes) for name in "qkv")
        q, k = self._rotated(q), self._rotated(k)
        k, v = (np.repeat(each, heads // kv_heads, axis=1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / lanes**0.5
        scores = np.where(np.tri(rows, dtype=bool), scores, -np.inf)
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        return self._linear(prefix + "o_proj", np.einsum("hqk,khd->qhd", chances, v).reshape(rows, -1))

    def _rotated(self, x: Array) -> Array:
        lanes = x.shape[-1]
        frequencies = self._config["rope_theta"] ** (-np.arange(0, lanes, 2) / lanes)
        angles = np.arange(len(x))[:, None, None] * frequencies
        first, second = x[..., : lanes // 2], x[..., lanes // 2 :]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
