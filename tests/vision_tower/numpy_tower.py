"""A vision tower in plain numpy and float32, which the backends are compared with. It computes from
`workers.vision.config`'s description and canonical parameters alone."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.vision.config import Merger, VisionConfig
from workers.vision.patches import ImagePatches
from workers.vision.positions import added, angles, values

Floats = NDArray[np.float32]
Parameters = Mapping[str, NDArray[Any]]


class NumpyTower:
    """Computes the rows of embeddings of images."""

    def __init__(self, config: VisionConfig, parameters: Parameters) -> None:
        self._config = config
        self._parameters = {name: np.asarray(each, np.float32) for name, each in parameters.items()}

    def rows(self, patches: ImagePatches) -> Floats:
        """Return the rows in the order of the prompt, float32 [tokens, width]: see `ImageEncoding.rows`."""
        config = self._config
        hidden = self._embed("values_norm", config.values_norm, values(config, patches))
        hidden = self._embed("patch_norm", config.patch_norm, self._linear("patch", hidden))
        places = added(config, self._parameters, patches)
        hidden = self._embed("placed_norm", config.placed_norm, hidden if places is None else hidden + places)
        turned, merged = angles(config, patches), []
        for layer in range(config.layers):
            whole = config.full_layers is None or layer in config.full_layers
            hidden = self._layer(layer, hidden, turned, None if whole else patches.windows)
            if layer in config.taps:
                assert config.tap_merger is not None
                merged.append(self._merge(f"taps.{config.taps.index(layer)}", config.tap_merger, hidden))
        if config.last_norm:
            hidden = self._norm("norm", hidden, config.norm, config.eps)
        rows = np.concatenate([self._merge("merger", config.merger, hidden), *merged], axis=1)
        return patches.arranged(rows, self._parameters.get("newline.weight"))

    def _embed(self, name: str, kind: str | None, rows: Floats) -> Floats:
        return rows if kind is None else self._norm(name, rows, kind, self._config.eps)

    def _layer(self, layer: int, hidden: Floats, turned: Floats | None, windows: NDArray[np.int32] | None) -> Floats:
        config, own = self._config, f"layers.{layer}"
        mixed = self._attention(own, self._norm(f"{own}.norm1", hidden, config.norm, config.eps), turned, windows)
        mixed = self._norm(f"{own}.post1", mixed, "rms", config.eps) if config.sandwich else mixed
        hidden = hidden + mixed
        inputs = self._norm(f"{own}.norm2", hidden, config.norm, config.eps)
        inner = self._linear(f"{own}.up", inputs)
        if config.gated:
            inner = inner * activate(config.activation, self._linear(f"{own}.gate", inputs))
        else:
            inner = activate(config.activation, inner)
        outputs = self._linear(f"{own}.down", inner)
        return hidden + (self._norm(f"{own}.post2", outputs, "rms", config.eps) if config.sandwich else outputs)

    def _attention(self, own: str, inputs: Floats, turned: Floats | None, windows: NDArray[np.int32] | None) -> Floats:
        config = self._config
        shape = (len(inputs), config.heads, config.head_dim)
        queries, keys, values = (self._linear(f"{own}.{name}", inputs).reshape(shape) for name in "qkv")
        if config.qk_norm:
            queries = self._norm(f"{own}.q_norm", queries, "rms", config.eps)
            keys = self._norm(f"{own}.k_norm", keys, "rms", config.eps)
        if config.value_norm:
            values = values / np.sqrt(np.mean(values**2, axis=-1, keepdims=True) + config.eps)
        if turned is not None:
            queries, keys = rotate(queries, turned), rotate(keys, turned)
        scores = np.einsum("qhd,khd->hqk", queries, keys, optimize=True) * np.float32(config.scale)
        if windows is not None:
            scores = np.where(windows[:, None] == windows[None], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, values, optimize=True).reshape(len(inputs), -1)
        return self._linear(f"{own}.o", mixed)

    def _merge(self, name: str, merger: Merger, hidden: Floats) -> Floats:
        def normed(rows: Floats) -> Floats:
            return rows if merger.norm is None else self._norm(f"{name}.norm", rows, merger.norm, merger.eps)

        hidden = hidden[: len(hidden) - self._config.extra]
        hidden = normed(hidden) if merger.norm_each else hidden
        groups = hidden.reshape(-1, self._config.group, hidden.shape[-1])
        rows = groups.reshape(len(groups), -1) if merger.pooling == "concat" else groups.mean(axis=1)
        rows = rows * np.float32(merger.scale)
        if self._config.standardize:
            rows = (rows - self._parameters["standard.bias"]) * self._parameters["standard.scale"]
        rows = rows if merger.norm_each else normed(rows)
        for number, mix in enumerate(merger.mixes):
            rows = self._linear(f"{name}.mix.{number}", rows)
            if mix.norm is not None:
                rows = self._norm(f"{name}.mix.{number}.norm", rows, mix.norm, merger.eps)
            rows = rows if mix.activation is None else activate(mix.activation, rows)
        if merger.gated:
            assert merger.activation is not None
            gates = activate(merger.activation, self._linear(f"{name}.gate", rows))
            return self._linear(f"{name}.down", gates * self._linear(f"{name}.up", rows))
        rows = self._linear(f"{name}.up", rows) if merger.inner else rows
        rows = rows if merger.activation is None else activate(merger.activation, rows)
        return self._linear(f"{name}.down", rows)

    def _linear(self, name: str, inputs: Floats) -> Floats:
        clip = self._parameters.get(f"{name}.clip")
        inputs = inputs if clip is None else inputs.clip(clip[0], clip[1])
        outputs = inputs @ self._parameters[f"{name}.weight"].T + self._parameters.get(f"{name}.bias", np.float32(0))
        return outputs if clip is None else outputs.clip(clip[2], clip[3])

    def _norm(self, name: str, rows: Floats, kind: str, eps: float) -> Floats:
        if kind == "layer":
            rows = rows - rows.mean(axis=-1, keepdims=True)
        rows = rows / np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + np.float32(eps))
        return rows * self._parameters[f"{name}.weight"] + self._parameters.get(f"{name}.bias", np.float32(0))


def rotate(lanes: Floats, turned: Floats) -> Floats:
    """Rotate lanes [patches, heads, head_dim] by angles [patches, head_dim / 2]."""
    first, second = np.split(lanes, 2, axis=-1)
    cosine, sine = np.cos(turned)[:, None], np.sin(turned)[:, None]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def activate(kind: str, values: Floats) -> Floats:
    """Apply an activation."""
    if kind == "gelu":
        scale = np.vectorize(math.erf, otypes=[np.float32])(values / np.float32(math.sqrt(2)))
    elif kind == "gelu_tanh":
        scale = np.tanh(np.float32(math.sqrt(2 / math.pi)) * (values + 0.044715 * values**3))
    else:
        scale = 2 / (1 + np.exp(-values * np.float32(1.702 if kind == "quick_gelu" else 1.0))) - 1
    activated: Floats = values * (1 + scale) / 2
    return activated
