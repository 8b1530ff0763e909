"""Padding of a model's widths to whole vectors, as the kernels for CPUs need them (docs/adr/0051).

Zeros are added to weights, and everything that is computed from them is zero: sums get zeros as further terms. Only the
mean of a norm depends on the width; it divides by the number of values without padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.architectures.parts import LayerConfig
from workers.checkpoints.checkpoint import ModelConfig
from workers.iree.kernels.ir.mlir_types import LANES

HALF_MULTIPLES = (8, 4, 2)
"""Multiples to which half of the rotated lanes may be padded. Larger ones give RoPE wider vectors; two is the minimum,
because a pair of bfloat16 is stored at once."""

_Width = Literal["hidden", "head", "ffn", "expert_ffn", "shared_ffn", "expert_row", "per_layer"]
_AXES: Mapping[str, tuple[_Width | None, ...]] = {
    "embedding": (None, "hidden"),
    "head": (None, "hidden"),
    "head_bias": (None,),
    "norm": ("hidden",),
    "norm_bias": ("hidden",),
    "norm_attention": ("hidden",),
    "norm_attention_bias": ("hidden",),
    "norm_attention_out": ("hidden",),
    "norm_mlp": ("hidden",),
    "norm_mlp_bias": ("hidden",),
    "norm_mlp_out": ("hidden",),
    "qkv": ("head", "hidden"),
    "qkv_bias": ("head",),
    "q_norm": ("head",),
    "k_norm": ("head",),
    "o": ("hidden", "head"),
    "latent_in": (None, "hidden"),
    "latent_query_norm": (None,),
    "latent_queries": (None, None),
    "latent_norm": (None,),
    "latent_keys": (None, None),
    "latent_values": (None, None),
    "o_bias": ("hidden",),
    "gate_up": ("ffn", "hidden"),
    "up": ("ffn", "hidden"),
    "down": ("hidden", "ffn"),
    "gate_up_bias": ("ffn",),
    "up_bias": ("ffn",),
    "down_bias": ("hidden",),
    "input": ("hidden", "hidden"),
    "norm_token": ("hidden",),
    "norm_hidden": ("hidden",),
    "norm_final": ("hidden",),
    "layer_scalar": (None,),
    "per_layer_embedding": (None, "per_layer"),
    "per_layer_projection": ("per_layer", "hidden"),
    "per_layer_norm": ("per_layer",),
    "per_layer_gate": ("per_layer", "hidden"),
    "per_layer_out": ("hidden", "per_layer"),
    "norm_per_layer": ("hidden",),
    "router_norm": ("hidden",),
    "expert_scales": (None,),
    "norm_dense_out": ("hidden",),
    "norm_experts": ("hidden",),
    "norm_experts_out": ("hidden",),
    "router": (None, "hidden"),
    "router_correction": (None,),
    "experts_gate_up": ("expert_ffn", "expert_row"),
    "experts_up": ("expert_ffn", "expert_row"),
    "experts_down": ("expert_row", "expert_ffn"),
    "experts_in": ("expert_row", "hidden"),
    "experts_out": ("hidden", "expert_row"),
    "router_bias": (None,),
    "experts_gate_up_bias": ("expert_ffn",),
    "experts_down_bias": ("expert_row",),
    "sinks": (None,),
    "shared_gate_up": ("shared_ffn", "hidden"),
    "shared_up": ("shared_ffn", "hidden"),
    "shared_down": ("hidden", "shared_ffn"),
    "shared_gate": (None, "hidden"),
    "conv_in": ("hidden", "hidden"),
    "conv_taps": ("hidden", None, None),
    "conv_out": ("hidden", "hidden"),
    "delta_in": (None, "hidden"),
    "delta_gates": (None, "hidden"),
    "delta_taps": (None, None, None),
    "delta_decay": (None,),
    "delta_bias": (None,),
    "delta_norm": (None,),
    "delta_out": ("hidden", None),
    "mamba_in": (None, "hidden"),
    "mamba_taps": (None, None, None),
    "mamba_conv_bias": (None,),
    "mamba_decay": (None,),
    "mamba_step_bias": (None,),
    "mamba_skip": (None,),
    "mamba_norm": (None,),
    "mamba_out": ("hidden", None),
}
"""The widths that the axes of each tensor consist of, by its name within a layer. None is an axis that is not padded:
outputs of a matrix that are missing in its last tile are zeros already."""


@dataclass(frozen=True, slots=True)
class PaddedAxis:
    """An axis of a tensor that consists of equal blocks, such as heads; zeros are put behind each part of a block."""

    parts: tuple[tuple[int, int], ...]
    """The size of each part of a block, and what it is padded to."""

    @classmethod
    def whole(cls, size: int) -> "PaddedAxis":
        """Return an axis whose blocks have one part, padded to whole vectors."""
        return cls(((size, _round_up(size, LANES)),))

    @property
    def size(self) -> int:
        """Entries of a block."""
        return sum(size for size, _ in self.parts)

    @property
    def padded(self) -> int:
        """Entries of a padded block."""
        return sum(padded for _, padded in self.parts)

    def total(self, entries: int) -> int:
        """Return how many entries an axis has when it is padded. Raises `ValueError` if `entries` are not whole
        blocks."""
        if entries % self.size:
            raise ValueError(f"an axis of {entries} is not made of blocks of {self.size}")
        return entries // self.size * self.padded

    def pad(self, values: NDArray[Any], axis: int) -> NDArray[Any]:
        """Return `values` with this axis padded."""
        before, after = values.shape[:axis], values.shape[axis + 1 :]
        blocks = values.reshape(*before, -1, self.size, *after)
        out = np.zeros((*blocks.shape[: axis + 1], self.padded, *after), values.dtype)
        source = target = 0
        lead = (slice(None),) * (axis + 1)
        for size, padded in self.parts:
            out[(*lead, slice(target, target + size))] = blocks[(*lead, slice(source, source + size))]
            source, target = source + size, target + padded
        return out.reshape(*before, self.total(values.shape[axis]), *after)


Axes = tuple[PaddedAxis | None, ...]
"""The axes of a tensor; None is one that is not padded."""


@dataclass(frozen=True, slots=True)
class WidthPadding:
    """The widths of a model, and what each is padded to."""

    hidden: PaddedAxis
    ffn: PaddedAxis
    heads: tuple[PaddedAxis, ...]
    """Lanes of a head, of each shape of keys and values: both halves of those that RoPE rotates, then those that
    pass."""
    expert_ffn: PaddedAxis | None
    """The MLP of one expert."""
    shared_ffn: PaddedAxis | None = None
    """The MLP of the shared expert."""
    per_layer: PaddedAxis | None = None
    """The embedding of one layer's own."""
    latent: PaddedAxis | None = None
    """The latents that experts compute in place of rows."""

    @classmethod
    def of(cls, config: ModelConfig) -> "WidthPadding | None":
        """Return the padding of a model, None if all of its widths are whole vectors."""
        experts = shared = latent = None
        if config.experts is not None:
            latent = PaddedAxis.whole(config.experts.latent) if config.experts.latent else None
            experts = PaddedAxis.whole(config.experts.ffn)
            shared = PaddedAxis.whole(config.experts.shared_ffn) if config.experts.shared_ffn else None
        heads = tuple(_head(width, half) for width, half in _head_lanes(config))
        own = None if config.per_layer is None else PaddedAxis.whole(config.per_layer.width)
        hidden, ffn = PaddedAxis.whole(config.hidden_size), PaddedAxis.whole(config.ffn)
        made = cls(hidden, ffn, heads, experts, shared, own, latent)
        axes = [axis for axis in (hidden, ffn, *heads, experts, shared, own, latent) if axis is not None]
        return made if any(axis.padded != axis.size for axis in axes) else None

    @property
    def head(self) -> PaddedAxis:
        """Lanes of a head of the first shape."""
        return self.heads[0]

    def head_of(self, layer: LayerConfig) -> PaddedAxis:
        """Return the lanes of a head of a layer."""
        return self.heads[layer.kv_shape]

    def config(self, config: ModelConfig) -> ModelConfig:
        """Return the model with padded widths. Its rotary embeddings keep their frequencies."""
        experts = config.experts
        if experts is not None and self.expert_ffn is not None:
            shared = 0 if self.shared_ffn is None else self.shared_ffn.padded
            latent = 0 if self.latent is None else self.latent.padded
            experts = replace(experts, ffn=self.expert_ffn.padded, shared_ffn=shared, latent=latent)
        return replace(
            config,
            hidden_size=self.hidden.padded,
            ffn=self.ffn.padded,
            head_dim=self.head.padded,
            kv_shapes=tuple(
                replace(shape, key_width=head.padded, value_width=head.padded + shape.value_width - head.size)
                for shape, head in zip(config.kv_shapes, self.heads, strict=False)
            ),
            experts=experts,
            per_layer=None
            if config.per_layer is None or self.per_layer is None
            else replace(config.per_layer, width=self.per_layer.padded),
            convolution=None
            if config.convolution is None
            else replace(config.convolution, channels=self.hidden.padded),
        )

    def axes(self, tensor: str, plan: Sequence[LayerConfig] = ()) -> Axes:
        """Return the axes of one of the model's tensors, such as `3.qkv`. Layers behind the `plan` have heads of the
        first shape."""
        number = tensor.partition(".")[0]
        layer = int(number) if number.isdecimal() else len(plan)
        kinds: Mapping[_Width, PaddedAxis | None] = {
            "hidden": self.hidden,
            "head": self.head_of(plan[layer]) if layer < len(plan) else self.head,
            "ffn": self.ffn,
            "expert_ffn": self.expert_ffn,
            "shared_ffn": self.shared_ffn,
            "expert_row": self.hidden if self.latent is None else self.latent,
            "per_layer": self.per_layer,
        }
        axes = (None if kind is None else kinds[kind] for kind in _AXES[tensor.rpartition(".")[2]])
        return tuple(None if axis is None or axis.padded == axis.size else axis for axis in axes)


def _head_lanes(config: ModelConfig) -> list[tuple[int, int]]:
    """Return the lanes of a query or key of each shape, and half of those that RoPE rotates in its layers."""
    found = []
    for number, shape in enumerate(config.kv_shapes or (config.kv_shape(config.layers),)):
        rotated = (layer.rope for layer in config.plan if layer.kv_shape == number and layer.rope is not None)
        found.append((shape.key_width, config.ropes[next(rotated, 0)].dims // 2))
    return found


def _head(lanes: int, half: int) -> PaddedAxis:
    """Return the lanes of a head of which RoPE rotates `2 * half`: of the smallest sizes the one with the widest
    vectors."""

    def padded(multiple: int) -> PaddedAxis:
        rotated, passed = _round_up(half, multiple), lanes - 2 * half
        whole = _round_up(2 * rotated + passed, LANES)
        return PaddedAxis(((half, rotated), (half, rotated), (passed, whole - 2 * rotated)))

    return min((padded(multiple) for multiple in HALF_MULTIPLES), key=lambda axis: axis.padded)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
