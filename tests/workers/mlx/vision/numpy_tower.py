"""A vision tower in plain numpy, float64, one patch's attention after the other's: the reference of the one on MLX."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from workers.vision.config import Merger, VisionConfig
from workers.vision.parameters import parameter_shapes
from workers.vision.patches import ImagePatches
from workers.vision.positions import added, angles

Floats = NDArray[np.float64]
ERF = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "gelu": lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def random_parameters(config: VisionConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return parameters to which every part of the tower matters."""
    draw = np.random.default_rng(seed)
    made = {}
    for name, shape in sorted(parameter_shapes(config).items()):
        values = draw.standard_normal(shape)
        if name.endswith(".clip"):
            values = np.array([-1.5, 1.2, -1.1, 1.4])
        elif len(shape) > 1:
            values *= 1.0 if name.startswith("positions") else 1.2 / math.sqrt(shape[-1])
        else:
            values = 1 + 0.2 * values if name.endswith(("weight", "scale")) else 0.2 * values
        made[name] = values.astype(np.float32)
    return made


def random_image(config: VisionConfig, tokens: tuple[int, int], *, window: int = 0, seed: int = 0) -> ImagePatches:
    """Return patches of an image of so many rows and columns of tokens, a multiple of `window` tokens of a window if
    there are any, which then lie in reversed order."""
    side = math.isqrt(config.group)
    places = [
        (row * side + inner // side, column * side + inner % side)
        for row in range(tokens[0])
        for column in range(tokens[1])
        for inner in range(config.group)
    ]
    count = len(places)
    values = np.random.default_rng(seed).standard_normal((count, config.patch_values)).astype(np.float32)
    groups = np.arange(count // config.group, dtype=np.int32)
    return ImagePatches(
        values,
        (tokens[0] * side, tokens[1] * side),
        np.array(places, np.int32),
        b"key",
        np.arange(count, dtype=np.int32) // (window * config.group) if window else None,
        groups[::-1].copy() if window else None,
        tokens,
    )


def reference_rows(config: VisionConfig, given: Mapping[str, NDArray[np.float32]], image: ImagePatches) -> Floats:
    """Return the rows of an image, [tokens, width]."""
    parameters = {name: array.astype(np.float64) for name, array in given.items()}
    x = _linear(parameters, "patch", image.values.astype(np.float64))
    if (positions := added(config, given, image)) is not None:
        x = x + positions
    columns = []
    for layer in range(config.layers):
        x = _layer(config, parameters, layer, x, image)
        if layer in config.taps:
            assert config.tap_merger is not None
            columns.append(_merge(config, config.tap_merger, parameters, f"taps.{config.taps.index(layer)}", x))
    if config.last_norm:
        x = _norm(parameters, "norm", x, config.norm, config.eps)
    made = np.concatenate([_merge(config, config.merger, parameters, "merger", x), *columns], axis=1)
    return made if image.order is None else made[image.order]


def _layer(
    config: VisionConfig, parameters: Mapping[str, Floats], layer: int, x: Floats, image: ImagePatches
) -> Floats:
    name = f"layers.{layer}"
    normed = _norm(parameters, f"{name}.norm1", x, config.norm, config.eps)
    queries, keys, values = (
        _linear(parameters, f"{name}.{part}", normed).reshape(len(x), config.heads, -1) for part in "qkv"
    )
    if config.qk_norm:
        queries = _norm(parameters, f"{name}.q_norm", queries, "rms", config.eps)
        keys = _norm(parameters, f"{name}.k_norm", keys, "rms", config.eps)
        values = _norm({}, "", values, "rms", config.eps)
    if (turned := angles(config, image)) is not None:
        queries, keys = _rotate(queries, turned), _rotate(keys, turned)
    mixed = np.zeros_like(queries)
    for row in range(len(x)):
        windowed = config.full_layers is not None and layer not in config.full_layers
        if windowed:
            assert image.windows is not None
            seen = np.flatnonzero(image.windows == image.windows[row])
        else:
            seen = np.arange(len(x))
        for head in range(config.heads):
            scores = keys[seen, head] @ queries[row, head] * config.scale
            weights = np.exp(scores - scores.max())
            mixed[row, head] = weights / weights.sum() @ values[seen, head]
    attended = _linear(parameters, f"{name}.o", mixed.reshape(len(x), -1))
    if config.sandwich:
        attended = _norm(parameters, f"{name}.post1", attended, "rms", config.eps)
    x = x + attended
    normed, activate = _norm(parameters, f"{name}.norm2", x, config.norm, config.eps), ACTIVATIONS[config.activation]
    inner = _linear(parameters, f"{name}.up", normed)
    inner = activate(_linear(parameters, f"{name}.gate", normed)) * inner if config.gated else activate(inner)
    out = _linear(parameters, f"{name}.down", inner)
    return x + (_norm(parameters, f"{name}.post2", out, "rms", config.eps) if config.sandwich else out)


def _merge(config: VisionConfig, merger: Merger, parameters: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    if merger.norm is not None and merger.norm_each:
        x = _norm(parameters, f"{name}.norm", x, merger.norm, merger.eps)
    groups = x.reshape(-1, config.group, config.hidden)
    made = groups.mean(axis=1) if merger.pooling == "mean" else groups.reshape(len(groups), -1)
    made = made * merger.scale
    if config.standardize:
        made = (made - parameters["standard.bias"]) * parameters["standard.scale"]
    if merger.norm is not None and not merger.norm_each:
        made = _norm(parameters, f"{name}.norm", made, merger.norm, merger.eps)
    if merger.inner:
        made = _linear(parameters, f"{name}.up", made)
    if merger.activation is not None:
        made = ACTIVATIONS[merger.activation](made)
    return _linear(parameters, f"{name}.down", made)


def _linear(parameters: Mapping[str, Floats], name: str, x: Floats) -> Floats:
    low, high, least, most = parameters.get(f"{name}.clip", np.array([-np.inf, np.inf, -np.inf, np.inf]))
    out = np.clip(x, low, high) @ parameters[f"{name}.weight"].T + parameters.get(f"{name}.bias", 0.0)
    return np.clip(out, least, most)


def _norm(parameters: Mapping[str, Floats], name: str, x: Floats, kind: str, eps: float) -> Floats:
    centred = x - x.mean(axis=-1, keepdims=True) if kind == "layer" else x
    normed = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    scaled: Floats = normed * parameters.get(f"{name}.weight", 1.0) + parameters.get(f"{name}.bias", 0.0)
    return scaled


def _rotate(x: Floats, turned: NDArray[np.float32]) -> Floats:
    half = x.shape[-1] // 2
    cosines, sines = np.cos(turned)[:, None], np.sin(turned)[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
