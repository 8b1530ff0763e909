"""mlx-lm's Mamba-2 layers, with the recurrence computed row after row."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import ssm

from workers.checkpoints.architectures.parts import Mamba2
from workers.checkpoints.checkpoint import ModelConfig
from workers.mlx.modules.parts import apply_multipliers
from workers.mlx.modules.ungated import UngatedMlp, silu

LETTERS: Mapping[str, str] = {"mamba2": "M", "attention": "*", "none": "-"}
"""The letters of layers in `hybrid_override_pattern`."""
EXPERTS = "E"
"""That of a layer with a mixture of experts alone."""


def row_by_row(
    x: mx.array,
    decay: mx.array,
    b: mx.array,
    c: mx.array,
    skip: mx.array,
    steps: mx.array,
    step_bias: mx.array,
    state: mx.array,
    step_limit: tuple[float, float],
    mask: mx.array | None = None,
    lengths: mx.array | None = None,
) -> tuple[mx.array, mx.array]:
    """mlx-lm's `ssm_update`, called for one row after the other: x [sequences, rows, heads, lanes], b and c
    [sequences, rows, groups, state], steps [sequences, rows, heads], state [sequences, heads, lanes, state].

    mlx-lm computes several rows by another formula than one, so that its states depend on how a prompt was divided
    (docs/adr/0133). There is no mask: a call has no padding.
    """
    rows = []
    for at in range(x.shape[1]):
        row = slice(at, at + 1)
        of_row = (x[:, row], decay.astype(mx.float32), b[:, row], c[:, row], skip, steps[:, row], step_bias, state)
        y, state = ssm.ssm_update(*of_row, step_limit)
        rows.append(y)
    return mx.concatenate(rows, axis=1), state


def mamba_fields(config: ModelConfig, sizes: Mamba2) -> dict[str, Any]:
    """Return the fields of config.json of Granite 4's and Nemotron-H's modules."""
    experts = config.experts
    return {
        "mamba_n_heads": sizes.heads,
        "mamba_d_head": sizes.head_dim,
        "mamba_n_groups": sizes.groups,
        "mamba_d_state": sizes.state,
        "mamba_d_conv": sizes.taps,
        "mamba_conv_bias": sizes.conv_bias,
        "mamba_proj_bias": False,
        "mamba_num_heads": sizes.heads,
        "mamba_head_dim": sizes.head_dim,
        "n_groups": sizes.groups,
        "ssm_state_size": sizes.state,
        "conv_kernel": sizes.taps,
        "use_conv_bias": sizes.conv_bias,
        "time_step_limit": sizes.step_limit,
        "shared_intermediate_size": config.ffn if experts is None else experts.shared_ffn,
        "num_local_experts": 0 if experts is None else experts.count,
        "layer_norm_epsilon": config.rms_eps,
        "layers_block_type": None,
        "hybrid_override_pattern": [
            EXPERTS if layer.kind == "none" and layer.experts else LETTERS[layer.kind] for layer in config.plan
        ],
        "n_shared_experts": None if experts is None else 1,
        "moe_shared_expert_intermediate_size": None if experts is None else experts.shared_ffn,
        "moe_latent_size": None if experts is None else experts.latent or None,
    }


class GroupedNorm(nn.Module):  # type: ignore[misc]
    """The RMS norm of gated values in groups. mlx-lm norms all values of Granite 4 together."""

    def __init__(self, norm: nn.Module, groups: int) -> None:
        super().__init__()
        self.weight = norm.weight
        self._eps = norm.eps
        self._groups = groups

    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        parts = mx.unflatten(silu(gate) * x, -1, (self._groups, -1))
        normed: mx.array = self.weight * mx.fast.rms_norm(parts, None, self._eps).flatten(-2)
        return normed


def group_norms(model: Any, config: ModelConfig) -> None:
    """Norm Granite 4's groups by themselves, and apply its multipliers."""
    if config.mamba is not None and config.mamba.groups > 1:
        for layer, described in zip(model.layers, config.plan, strict=True):
            if described.kind == "mamba2":
                layer.mamba.module.norm = GroupedNorm(layer.mamba.module.norm, config.mamba.groups)
    apply_multipliers(model, config)


class NemotronDecoder(nn.Module):  # type: ignore[misc]
    """Nemotron-H's decoder, with the names of Llama's, and caches of the layers that mix rows."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = backbone.embeddings
        self.layers = backbone.layers
        self.norm = backbone.norm_f

    def __call__(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        hidden, caches = self.embed_tokens(tokens), iter(cache)
        for layer in self.layers:
            own = None if layer.block_type in (LETTERS["none"], EXPERTS) else next(caches)
            hidden = layer(hidden, None, own)
        normed: mx.array = self.norm(hidden)
        return normed


def name_decoder(model: Any, config: ModelConfig) -> None:
    """Give a Nemotron-H model the names of Llama's, and MLPs and shared experts without `mx.compile`."""
    for layer, described in zip(model.layers, config.plan, strict=True):
        if described.kind == "none":
            owner, name = (layer.mixer, "shared_experts") if described.experts else (layer, "mixer")
            owner[name] = UngatedMlp(owner[name].up_proj, owner[name].down_proj, config.activation)
    model.model = NemotronDecoder(model.backbone)
    del model.backbone
