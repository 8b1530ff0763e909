"""A vision tower in plain numpy, float64, as `workers.vision.config` describes it; and random parameters and images."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from workers.vision import positions
from workers.vision.config import Merger, VisionConfig
from workers.vision.parameters import parameter_shapes
from workers.vision.patches import ImagePatches

Array = NDArray[np.float64]
Parameters = dict[str, NDArray[np.float32]]


def random_parameters(config: VisionConfig, seed: int = 0) -> Parameters:
    rng = np.random.default_rng(seed)

    def values(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        if name.endswith(".clip"):
            return np.array([-0.8, 0.8, -1.5, 1.5], np.float32)
        noise = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            return 0.1 * noise + np.float32(name.endswith((".weight", ".scale")))
        return noise * np.float32(shape[-1] ** -0.5)

    return {name: values(name, shape) for name, shape in parameter_shapes(config).items()}


def random_image(config: VisionConfig, rows: int, columns: int, *, windows: bool = False, seed: int = 0) -> ImagePatches:
    """An image of so many groups of patches; with `windows` each has two or three groups."""
    side = math.isqrt(config.group)
    rng, count = np.random.default_rng(seed), rows * columns * config.group
    grid = np.stack(np.meshgrid(np.arange(rows * side), np.arange(columns * side), indexing="ij"), -1)
    places = grid.reshape(rows, side, columns, side, 2).swapaxes(1, 2).reshape(count, 2).astype(np.int32)
    groups = np.arange(rows * columns)
    return ImagePatches(
        rng.standard_normal((count, config.patch_values), dtype=np.float32),
        (rows * side, columns * side),
        places,
        b"image",
        np.repeat((groups * 2 // 5).astype(np.int32), config.group) if windows else None,
        np.roll(groups, 2).astype(np.int32) if windows else None,
        (rows, columns),
    )


def reference_rows(config: VisionConfig, p: Mapping[str, NDArray[np.float32]], image: ImagePatches) -> Array:
    """The rows of embeddings of an image."""
    x = _linear(image.values.astype(np.float64), p, "patch")
    if (added := positions.added(config, p, image)) is not None:
        x = x + added
    angles = positions.angles(config, image)
    parts: dict[int, Array] = {}
    for number in range(config.layers):
        x = _layer(config, p, f"layers.{number}.", x, angles, _seen(config, image, number))
        for tap in (at for at, layer in enumerate(config.taps) if layer == number):
            assert config.tap_merger is not None
            parts[1 + tap] = _merge(config, config.tap_merger, p, f"taps.{tap}.", x)
    if config.last_norm:
        x = _norm(x, p, "norm", config.norm, config.eps)
    parts[0] = _merge(config, config.merger, p, "merger.", x)
    rows = np.concatenate([parts[number] for number in sorted(parts)], axis=1)
    return rows if image.order is None else rows[image.order]


def _seen(config: VisionConfig, image: ImagePatches, layer: int) -> NDArray[np.bool_]:
    if config.full_layers is None or layer in config.full_layers:
        return np.ones((len(image.values),) * 2, bool)
    assert image.windows is not None
    return image.windows[:, None] == image.windows[None]


def _layer(
    config: VisionConfig,
    p: Mapping[str, NDArray[np.float32]],
    name: str,
    x: Array,
    angles: NDArray[np.float32] | None,
    seen: NDArray[np.bool_],
) -> Array:
    h = _norm(x, p, name + "norm1", config.norm, config.eps)
    q, k, v = (_linear(h, p, name + each).reshape(len(x), config.heads, -1).swapaxes(0, 1) for each in "qkv")
    if config.qk_norm:
        q, k = _unit(q, config.eps) * p[name + "q_norm.weight"], _unit(k, config.eps) * p[name + "k_norm.weight"]
        v = _unit(v, config.eps)
    if angles is not None:
        q, k = _rotated(q, angles), _rotated(k, angles)
    scores = np.where(seen, q @ k.swapaxes(1, 2) * config.scale, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True)) @ v
    delta = _linear(mixed.swapaxes(0, 1).reshape(len(x), -1), p, name + "o")
    x = x + (_unit(delta, config.eps) * p[name + "post1.weight"] if config.sandwich else delta)
    h = _norm(x, p, name + "norm2", config.norm, config.eps)
    up = _linear(h, p, name + "up")
    if config.gated:
        up = _activated(_linear(h, p, name + "gate"), config.activation) * up
    else:
        up = _activated(up, config.activation)
    delta = _linear(up, p, name + "down")
    return x + (_unit(delta, config.eps) * p[name + "post2.weight"] if config.sandwich else delta)


def _merge(
    config: VisionConfig, merger: Merger, p: Mapping[str, NDArray[np.float32]], name: str, x: Array
) -> Array:
    groups = x.reshape(-1, config.group, config.hidden)
    if merger.norm is not None and merger.norm_each:
        groups = _norm(groups, p, name + "norm", merger.norm, merger.eps)
    x = groups.reshape(len(groups), -1) if merger.pooling == "concat" else groups.mean(1)
    x = x * merger.scale
    if config.standardize and name == "merger.":
        x = (x - p["standard.bias"]) * p["standard.scale"]
    if merger.norm is not None and not merger.norm_each:
        x = _norm(x, p, name + "norm", merger.norm, merger.eps)
    if merger.inner:
        assert merger.activation is not None
        x = _activated(_linear(x, p, name + "up"), merger.activation)
    return _linear(x, p, name + "down")


def _linear(x: Array, p: Mapping[str, NDArray[np.float32]], name: str) -> Array:
    clip = p.get(f"{name}.clip")
    x = x if clip is None else np.clip(x, clip[0], clip[1])
    out: Array = x @ p[f"{name}.weight"].T.astype(np.float64) + p.get(f"{name}.bias", np.float32(0))
    return out if clip is None else np.clip(out, clip[2], clip[3])


def _unit(x: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def _norm(x: Array, p: Mapping[str, NDArray[np.float32]], name: str, kind: str, eps: float) -> Array:
    if kind == "layer":
        return _unit(x - x.mean(-1, keepdims=True), eps) * p[f"{name}.weight"] + p[f"{name}.bias"]
    return _unit(x, eps) * p[f"{name}.weight"]


def _rotated(x: Array, angles: NDArray[np.float32]) -> Array:
    half = angles.shape[1]
    a, b, cos, sin = x[..., :half], x[..., half:], np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _activated(x: Array, kind: str) -> Array:
    if kind == "gelu":
        return x / 2 * (1 + np.vectorize(math.erf)(x / 2**0.5))
    if kind == "gelu_tanh":
        return x / 2 * (1 + np.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-x * (1.702 if kind == "quick_gelu" else 1.0)))
