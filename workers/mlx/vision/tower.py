"""The arithmetic of a vision tower on MLX, over blocks of its rows (`workers.vision.config` describes the parts)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from workers.mlx.modules.ungated import gelu, gelu_tanh, silu
from workers.vision.config import Activation, Merger, Norm, VisionConfig

FINAL = "merger"
"""The prefix of the parameters of the merger behind the last layer; those of taps have `taps.N`."""


def quick_gelu(x: mx.array) -> mx.array:
    """x * sigmoid(1.702 x)."""
    return x * mx.sigmoid(1.702 * x)


ACTIVATIONS: Mapping[Activation, Callable[[mx.array], mx.array]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": silu,
}


@dataclass(frozen=True, slots=True)
class Attended:
    """The rotated queries, keys and values of a block of rows, each [1, heads, rows, head_dim]."""

    queries: mx.array
    keys: mx.array
    values: mx.array


class MlxVisionTower:
    """The weights of a tower, which computes in one type."""

    def __init__(self, config: VisionConfig, parameters: Mapping[str, mx.array], dtype: mx.Dtype) -> None:
        """`parameters` have the names of `workers.vision.config`, with matrices [inputs, outputs]. Rows are computed
        in `dtype`, which may be wider than the weights."""
        self.config = config
        self._parameters = parameters
        self._dtype = dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(int(array.nbytes) for array in self._parameters.values())

    def embed(self, values: mx.array, added: mx.array | None) -> mx.array:
        """Patches [rows, patch_values], and what is added to their embeddings -> [rows, hidden]."""
        config = self.config
        x = self._embedded("values_norm", config.values_norm, values.astype(self._dtype))
        x = self._embedded("patch_norm", config.patch_norm, self._linear("patch", x))
        x = x if added is None else (x + added).astype(self._dtype)
        return self._embedded("placed_norm", config.placed_norm, x)

    def project(self, layer: int, x: mx.array, cosines: mx.array | None, sines: mx.array | None) -> Attended:
        """Compute the queries, keys and values of rows, rotated by angles whose cosines and sines are [rows,
        head_dim / 2]."""
        name, config = f"layers.{layer}", self.config
        normed = self._norm(f"{name}.norm1", x, config.norm, config.eps)
        queries, keys, values = (self._heads(self._linear(f"{name}.{part}", normed)) for part in "qkv")
        if config.qk_norm:
            queries = self._norm(f"{name}.q_norm", queries, "rms", config.eps)
            keys = self._norm(f"{name}.k_norm", keys, "rms", config.eps)
        if config.value_norm:
            values = mx.fast.rms_norm(values, None, config.eps)
        if cosines is not None and sines is not None:
            queries, keys = (_rotate(part, cosines, sines) for part in (queries, keys))
        return Attended(queries, keys, values)

    def finish(
        self, layer: int, x: mx.array, queries: mx.array, keys: mx.array, values: mx.array, seen: mx.array | None
    ) -> mx.array:
        """Attend to keys and values, and compute the MLP: the output of a layer for rows [rows, hidden]. `seen` is a
        mask, [rows, keys]; None if all are."""
        name, config = f"layers.{layer}", self.config
        mixed = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=config.scale, mask=seen)
        attended = self._linear(f"{name}.o", mixed[0].swapaxes(0, 1).reshape(x.shape[0], -1))
        if config.sandwich:
            attended = self._norm(f"{name}.post1", attended, "rms", config.eps)
        x = x + attended
        normed = self._norm(f"{name}.norm2", x, config.norm, config.eps)
        activate, up = ACTIVATIONS[config.activation], self._linear(f"{name}.up", normed)
        inner = activate(self._linear(f"{name}.gate", normed)) * up if config.gated else activate(up)
        out = self._linear(f"{name}.down", inner)
        if config.sandwich:
            out = self._norm(f"{name}.post2", out, "rms", config.eps)
        return x + out

    def merge(self, tap: int | None, x: mx.array) -> mx.array:
        """Make tokens of rows of whole groups: [rows, hidden] -> float32 [rows / group, output]. `tap` is the number of
        a tap; None for the output of the last layer."""
        config = self.config
        merger = config.merger if tap is None or config.tap_merger is None else config.tap_merger
        name = FINAL if tap is None else f"taps.{tap}"
        if tap is None and config.last_norm:
            x = self._norm("norm", x, config.norm, config.eps)
        if merger.norm is not None and merger.norm_each:
            x = self._norm(f"{name}.norm", x, merger.norm, merger.eps)
        grouped = x.reshape(-1, config.group, config.hidden)
        # Gemma 4's factor of a mean can be beyond float16.
        wide = grouped.astype(mx.float32)
        made = wide.mean(axis=1) if merger.pooling == "mean" else wide.reshape(wide.shape[0], -1)
        made = made if merger.scale == 1.0 else made * merger.scale
        if tap is None and config.standardize:
            made = (made - self._wide("standard.bias")) * self._wide("standard.scale")
        if merger.norm is not None and not merger.norm_each:
            made = self._norm(f"{name}.norm", made, merger.norm, merger.eps)
        return self._projected(name, merger, made.astype(self._dtype))

    def _embedded(self, name: str, kind: Norm | None, x: mx.array) -> mx.array:
        return x if kind is None else self._norm(name, x, kind, self.config.eps)

    def _projected(self, name: str, merger: Merger, made: mx.array) -> mx.array:
        for number, mix in enumerate(merger.mixes):
            made = self._linear(f"{name}.mix.{number}", made)
            if mix.norm is not None:
                made = self._norm(f"{name}.mix.{number}.norm", made, mix.norm, merger.eps)
            if mix.activation is not None:
                made = ACTIVATIONS[mix.activation](made)
        if merger.gated and merger.activation is not None:
            gates = ACTIVATIONS[merger.activation](self._linear(f"{name}.gate", made))
            return self._linear(f"{name}.down", gates * self._linear(f"{name}.up", made)).astype(mx.float32)
        if merger.inner:
            made = self._linear(f"{name}.up", made)
        if merger.activation is not None:
            made = ACTIVATIONS[merger.activation](made)
        return self._linear(f"{name}.down", made).astype(mx.float32)

    def _wide(self, name: str) -> mx.array:
        return self._parameters[name].astype(mx.float32)

    def _heads(self, x: mx.array) -> mx.array:
        """[rows, heads * head_dim] -> [1, heads, rows, head_dim]."""
        return x.reshape(1, x.shape[0], self.config.heads, -1).swapaxes(1, 2)

    def _linear(self, name: str, x: mx.array) -> mx.array:
        bounds = self._parameters.get(f"{name}.clip")
        if bounds is not None:
            bounds = bounds.astype(x.dtype)
            x = mx.clip(x, bounds[0], bounds[1])
        out = x @ self._parameters[f"{name}.weight"].astype(x.dtype)
        bias = self._parameters.get(f"{name}.bias")
        if bias is not None:
            out = out + bias.astype(x.dtype)
        return out if bounds is None else mx.clip(out, bounds[2], bounds[3])

    def _norm(self, name: str, x: mx.array, kind: Norm, eps: float) -> mx.array:
        weight, bias = (self._parameters.get(f"{name}.{part}") for part in ("weight", "bias"))
        weight, bias = (None if part is None else part.astype(x.dtype) for part in (weight, bias))
        if kind == "rms":
            return mx.fast.rms_norm(x, weight, eps)
        return mx.fast.layer_norm(x, weight, bias, eps)


def _rotate(x: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
    """Rotate lane i with lane i + head_dim / 2, in float32."""
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    rotated = mx.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return rotated.astype(x.dtype)
