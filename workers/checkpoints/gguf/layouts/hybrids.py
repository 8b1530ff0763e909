"""Architectures whose layers have a recurrent state, and mixtures of experts."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.layouts.architecture import (
    ATTENTION,
    BEFORE,
    LLAMA,
    MLP,
    Architecture,
    Fields,
    read_experts,
    read_multipliers,
    set_family,
)
from workers.checkpoints.gguf.layouts.mixtures import QWEN2_EXPERTS, QWEN3_EXPERTS, ROUTER_BIAS, SIGMOID
from workers.checkpoints.gguf.layouts.orders import MAX_ROWS, StoredOrder, grouped_heads

LFM2 = ATTENTION | {
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
LFM2_EXPERTS = {
    "ffn_gate_inp": "feed_forward.gate",
    ROUTER_BIAS: "feed_forward.expert_bias",
    "ffn_gate_exps": "feed_forward.experts.{}.w1",
    "ffn_up_exps": "feed_forward.experts.{}.w3",
    "ffn_down_exps": "feed_forward.experts.{}.w2",
}
DELTA = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
QWEN35 = ATTENTION | DELTA | {"post_attention_norm": "post_attention_layernorm"}
GRANITE_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_gate_shexp": "shared_mlp.gate_proj",
    "ffn_up_shexp": "shared_mlp.up_proj",
    "ffn_down_shexp": "shared_mlp.output_linear",
}
MAMBA = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_a": "mamba.A_log",
    "ssm_d": "mamba.D",
    "ssm_dt.bias": "mamba.dt_bias",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
NEMOTRON_H = {
    "attn_norm": "norm",
    "attn_q": "mixer.q_proj",
    "attn_k": "mixer.k_proj",
    "attn_v": "mixer.v_proj",
    "attn_output": "mixer.o_proj",
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
    **{name: module.replace("mamba.", "mixer.") for name, module in MAMBA.items()},
}
NEMOTRON_EXPERTS = NEMOTRON_H | {
    "ffn_gate_inp": "mixer.gate",
    ROUTER_BIAS: "mixer.gate.e_score_correction_bias",
    "ffn_up_exps": "mixer.experts.{}.up_proj",
    "ffn_down_exps": "mixer.experts.{}.down_proj",
    "ffn_up_shexp": "mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mixer.shared_experts.down_proj",
    "ffn_latent_down": "mixer.fc1_latent_proj",
    "ffn_latent_up": "mixer.fc2_latent_proj",
}
DELTA_PRECISE = frozenset({"ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_alpha", "ssm_beta"})


def read_lfm2(keys: Keys, fields: Fields) -> None:
    """Layers attend that have KV heads."""
    fields["layer_types"] = [
        "full_attention" if count else "conv" for count in keys.same_or_none("attention.head_count_kv")
    ]
    fields["conv_L_cache"] = keys.integer("shortconv.l_cache")
    fields["block_auto_adjust_ff_dim"] = False  # the file has the adjusted width


def read_lfm2_experts(keys: Keys, fields: Fields) -> None:
    """The weights of chosen experts sum to one."""
    read_lfm2(keys, fields)
    del fields["block_auto_adjust_ff_dim"]
    if (kind := keys.get("expert_gating_func")) != SIGMOID:
        raise keys.error("expert_gating_func", f"{kind!r} is not supported for this architecture, only {SIGMOID}")
    fields |= {
        "num_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "num_dense_layers": keys.count("leading_dense_block_count"),
        "use_expert_bias": any(name.endswith(f".{ROUTER_BIAS}") for name in keys.model.tensors),
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
    }


def read_delta(keys: Keys, fields: Fields) -> None:
    """Read the sizes of a gated delta network, and which layers attend."""
    values = keys.integer("ssm.time_step_rank")
    fields["linear_num_value_heads"] = values
    fields["linear_num_key_heads"] = keys.integer("ssm.group_count")
    fields["linear_key_head_dim"] = keys.integer("ssm.state_size")
    inner = keys.integer("ssm.inner_size")
    if inner % values:
        raise keys.error("ssm.inner_size", f"{inner} is no multiple of ssm.time_step_rank, {values}")
    fields["linear_value_head_dim"] = inner // values
    fields["linear_conv_kernel_dim"] = keys.integer("ssm.conv_kernel")
    recurrent, layers = keys.get("attention.recurrent_layers"), fields["num_hidden_layers"]
    interval = keys.integer("full_attention_interval", 4)
    if recurrent is None:
        recurrent = [(layer + 1) % interval != 0 for layer in range(layers)]
    if not isinstance(recurrent, list) or len(recurrent) < layers or any(each not in (0, 1) for each in recurrent):
        raise keys.error("attention.recurrent_layers", f"is not a list of true and false for each of {layers} layers")
    fields["layer_types"] = ["linear_attention" if each else "full_attention" for each in recurrent[:layers]]
    keys.get("rope.dimension_sections")  # positions of a text are the same in all sections


def read_delta_experts(keys: Keys, fields: Fields) -> None:
    read_delta(keys, fields)
    read_shared_experts(keys, fields)


def read_shared_experts(keys: Keys, fields: Fields) -> None:
    read_experts(keys, fields)
    fields["moe_intermediate_size"] = keys.integer("expert_feed_forward_length")
    fields["shared_expert_intermediate_size"] = keys.integer("expert_shared_feed_forward_length")


def read_granite_hybrid(keys: Keys, fields: Fields) -> None:
    """Read Granite 4, with experts or without. Layers without KV heads are Mamba-2."""
    fields["num_local_experts"] = keys.count("expert_count")
    if fields["num_local_experts"]:
        fields["num_experts_per_tok"] = keys.integer("expert_used_count")
    keys.get("expert_used_count")
    read_multipliers(keys, fields)
    heads, inner = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    if inner % fields["hidden_size"]:
        raise keys.error("ssm.inner_size", f"{inner} is no multiple of embedding_length, {fields['hidden_size']}")
    fields |= {
        "layer_types": ["attention" if count else "mamba" for count in keys.same_or_none("attention.head_count_kv")],
        "shared_intermediate_size": keys.integer("expert_shared_feed_forward_length", fields["intermediate_size"]),
        "position_embedding_type": "rope" if keys.get("rope.scaling.finetuned", False) else "nope",
        "mamba_n_heads": heads,
        "mamba_expand": inner // fields["hidden_size"],
        "mamba_n_groups": keys.integer("ssm.group_count"),
        "mamba_d_state": keys.integer("ssm.state_size"),
        "mamba_d_conv": keys.integer("ssm.conv_kernel"),
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in keys.model.tensors),
    }


def read_nemotron_h(keys: Keys, fields: Fields) -> None:
    """Layers are Mamba-2 that have neither KV heads nor an MLP."""
    heads, inner = keys.integer("ssm.time_step_rank"), keys.integer("ssm.inner_size")
    if inner % heads:
        raise keys.error("ssm.inner_size", f"{inner} is no multiple of ssm.time_step_rank, {heads}")
    counts, widths = (keys.same_or_none(name) for name in ("attention.head_count_kv", "feed_forward_length"))
    both = zip(counts, widths, strict=True)
    fields |= {
        "layers_block_type": ["attention" if count else "mlp" if width else "mamba" for count, width in both],
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": keys.integer("ssm.group_count"),
        "mamba_d_state": keys.integer("ssm.state_size"),
        "mamba_d_conv": keys.integer("ssm.conv_kernel"),
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in keys.model.tensors),
    }


def read_nemotron_experts(keys: Keys, fields: Fields) -> None:
    """Layers with the width of an MLP are mixtures of experts."""
    if (kind := keys.get("expert_gating_func", SIGMOID)) not in (0, SIGMOID):
        raise keys.error("expert_gating_func", f"{kind!r} is not supported for this architecture, only {SIGMOID}")
    if keys.get("nextn_predict_layers", 0):
        problem = "a head for multi-token prediction is not supported for this architecture: convert with --no-mtp"
        raise keys.error("nextn_predict_layers", problem)
    read_nemotron_h(keys, fields)
    keys.get("expert_shared_count")  # one, whose width is stated
    fields |= {
        "layers_block_type": ["moe" if kind == "mlp" else kind for kind in fields["layers_block_type"]],
        "n_routed_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": keys.integer("expert_shared_feed_forward_length"),
        "moe_latent_size": keys.get("moe_latent_size"),
        "n_group": keys.integer("expert_group_count", 1),
        "topk_group": keys.integer("expert_group_used_count", 1),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "norm_topk_prob": keys.get("expert_weights_norm", False),
    }


def order_value_heads(keys: Keys) -> Mapping[str, StoredOrder]:
    """Order the value heads of Qwen3.5, https://github.com/ggml-org/llama.cpp/pull/19468."""
    values, groups = keys.integer("ssm.time_step_rank"), keys.integer("ssm.group_count")
    if values % groups:
        raise keys.error("ssm.time_step_rank", f"{values} is no multiple of ssm.group_count, {groups}")
    inner, before = keys.integer("ssm.inner_size"), 2 * groups * keys.integer("ssm.state_size")
    keys.check_total("ssm.inner_size", max(values, inner), MAX_ROWS)
    keys.check_total("ssm.state_size", before + inner, MAX_ROWS)
    each, lanes = values // groups, inner // values
    heads, rows = grouped_heads(groups, each, 1), grouped_heads(groups, each, lanes)
    behind = StoredOrder(np.concatenate([np.arange(before), before + rows]))
    return {
        "attn_qkv": behind,
        "ssm_conv1d": behind,
        "attn_gate": StoredOrder(rows),
        "ssm_alpha": StoredOrder(heads),
        "ssm_beta": StoredOrder(heads),
        "ssm_a": StoredOrder(heads),
        "ssm_dt": StoredOrder(heads),
        "ssm_out": StoredOrder(columns=rows),
    }


def order_gates(keys: Keys) -> Mapping[str, StoredOrder]:
    """Order the gates of Qwen3-Next: those of the value heads of a key head lie together, strengths before decays."""
    values, groups = keys.integer("ssm.time_step_rank"), keys.integer("ssm.group_count")
    if values % groups:
        raise keys.error("ssm.time_step_rank", f"{values} is no multiple of ssm.group_count, {groups}")
    keys.check_total("ssm.time_step_rank", 2 * values, MAX_ROWS)
    strengths, decays = np.arange(2 * values).reshape(groups, 2, -1).swapaxes(0, 1).reshape(2, -1)
    return {
        "linear_attn.in_proj_b": StoredOrder(strengths, stored_rows=2 * values),
        "linear_attn.in_proj_a": StoredOrder(decays, stored_rows=2 * values),
    }


def log_decay(stored: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `A_log` of -exp(A_log). Raises `ValueError` for a value that is positive or no number."""
    if not np.all(stored <= 0.0):
        raise ValueError("has a value that is positive or no number, where decays are -exp(A_log)")
    with np.errstate(divide="ignore"):  # a state that never decays
        return np.log(-stored)


def read_granite_experts(keys: Keys, fields: Fields) -> None:
    read_experts(keys, fields)
    read_multipliers(keys, fields)
    if keys.get("expert_shared_feed_forward_length"):
        set_family(fields, "granitemoeshared")
        fields["shared_intermediate_size"] = keys.integer("expert_shared_feed_forward_length")


def read_olmoe(keys: Keys, fields: Fields) -> None:
    read_experts(keys, fields)
    fields["norm_topk_prob"] = False


QWEN35_DENSE = Architecture(
    "qwen3_5_text",
    QWEN35 | MLP,
    read=read_delta,
    orders=order_value_heads,
    values={"ssm_a": log_decay},
    uncentred=frozenset({"ssm_norm"}),
    precise=DELTA_PRECISE,
    taps=frozenset({"ssm_conv1d"}),
)
QWEN35_EXPERTS = replace(QWEN35_DENSE, family="qwen3_5_moe_text", names=QWEN35 | QWEN2_EXPERTS, read=read_delta_experts)
NEMOTRON = Architecture(
    "nemotron_h",
    NEMOTRON_H,
    paired=True,
    read=read_nemotron_h,
    values={"ssm_a": log_decay},
    taps=frozenset({"ssm_conv1d"}),
    flat=frozenset({"ssm_a", "ssm_d", "ssm_norm"}),
)
HYBRIDS: Mapping[str, Architecture] = {
    "nemotron_h": NEMOTRON,
    "nemotron_h_moe": replace(NEMOTRON, names=NEMOTRON_EXPERTS, read=read_nemotron_experts),
    "granitehybrid": Architecture(
        "granitemoehybrid",
        LLAMA | MAMBA | GRANITE_EXPERTS,
        paired=True,
        read=read_granite_hybrid,
        values={"ssm_a": log_decay},
        taps=frozenset({"ssm_conv1d"}),
        flat=frozenset({"ssm_a", "ssm_d", "ssm_norm"}),
    ),
    "lfm2": Architecture("lfm2", LFM2, read=read_lfm2, taps=frozenset({"shortconv.conv"})),
    "lfm2moe": Architecture(
        "lfm2_moe", LFM2 | LFM2_EXPERTS, read=read_lfm2_experts, taps=frozenset({"shortconv.conv"})
    ),
    "qwen35": QWEN35_DENSE,
    "qwen35moe": QWEN35_EXPERTS,
    # Its tensors are those of Qwen3.5 but for the gates, and its value heads are in order.
    "qwen3next": replace(
        QWEN35_EXPERTS,
        orders=order_gates,
        split={"ssm_ba": ("linear_attn.in_proj_b", "linear_attn.in_proj_a")},
        precise=DELTA_PRECISE | {"ssm_ba"},
    ),
    "granitemoe": Architecture(
        "granitemoe", ATTENTION | BEFORE | GRANITE_EXPERTS, paired=True, read=read_granite_experts
    ),
    "olmoe": Architecture("olmoe", ATTENTION | BEFORE | QWEN3_EXPERTS, read=read_olmoe),
}
"""The architectures by `general.architecture`."""
