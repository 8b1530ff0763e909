"""The changes that llama.cpp's converter makes to the tensors of families unlike Llama, and the keys that it adds.

Written from https://github.com/ggml-org/llama.cpp/tree/master/conversion, not from `workers.checkpoints.gguf`, which is
tested with it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Config = Mapping[str, Any]
Parts = Iterator[tuple[str, NDArray[Any]]]


def converted(config: Config, name: str, values: NDArray[Any]) -> Parts:
    """Yield what becomes of a tensor, by Hugging Face's names."""
    family = config["model_type"]
    if family in ("qwen3_5_text", "qwen3_5_moe_text"):
        values = _tiled_values(config, name, values)
    if family == "gpt_neox" and ".query_key_value." in name:
        values = values.reshape(config["num_attention_heads"], 3, -1).swapaxes(0, 1).reshape(values.shape)
    if ".mixer.experts." in name:
        yield name.replace("backbone.", "model.").replace(".mixer.", ".mlp."), values
    elif ".mamba." in name or (family == "nemotron_h" and ".mixer." in name):
        yield name, values
    elif name.endswith(".kv_b_proj.weight") and family != "minicpm3":
        heads = values.reshape(config["num_attention_heads"], -1, values.shape[1])
        yield name.replace("kv_b_proj", "k_b_proj"), heads[:, : config["qk_nope_head_dim"]].swapaxes(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), heads[:, config["qk_nope_head_dim"] :]
    elif name.endswith(".in_proj_qkvz.weight"):
        yield from _split_inputs(config, name.removesuffix("in_proj_qkvz.weight"), values)
    elif name.endswith("A_log"):
        yield name, -np.exp(values)
    elif name.endswith(".dt_bias"):
        yield f"{name.removesuffix('.dt_bias')}.dt_proj.bias", values
    elif name.endswith((".conv1d.weight", ".conv.conv.weight")):
        yield name, values[:, 0]
    else:
        yield name, values


def _tiled_values(config: Config, name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Value heads one after the other for all key heads, not key head by key head."""
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    lanes, before = config["linear_value_head_dim"], 2 * groups * config["linear_key_head_dim"]

    def tiled(rows: NDArray[Any], each: int) -> NDArray[Any]:
        split = rows.reshape(groups, heads // groups, each, *rows.shape[1:])
        return split.swapaxes(0, 1).reshape(rows.shape)

    if ".linear_attn." not in name:
        return values
    if ".in_proj_qkv." in name or ".conv1d." in name:
        return np.concatenate([values[:before], tiled(values[before:], lanes)])
    if ".in_proj_z." in name:
        return tiled(values, lanes)
    if ".out_proj." in name:
        return tiled(values.T, lanes).T
    return values if ".norm." in name else tiled(values, 1)


def _split_inputs(config: Config, prefix: str, values: NDArray[Any]) -> Parts:
    """Qwen3-Next's inputs, which are key head by key head."""
    groups, lanes = config["linear_num_key_heads"], config["linear_key_head_dim"]
    each = config["linear_num_value_heads"] // groups * config["linear_value_head_dim"]
    split = values.reshape(groups, -1, values.shape[1])
    parts = np.split(split, [lanes, 2 * lanes, 2 * lanes + each], axis=1)
    query, key, value, gate = (part.reshape(-1, values.shape[1]) for part in parts)
    yield f"{prefix}in_proj_qkv.weight", np.concatenate([query, key, value])
    yield f"{prefix}in_proj_z.weight", gate


def _gemma4(config: Config) -> dict[str, Any]:
    """Lengths are those of layers without windows, and those with the ending `swa` of the others."""
    windowed = [kind == "sliding_attention" for kind in config["layer_types"]]
    shared, width, ropes = config["num_kv_shared_layers"], config["intermediate_size"], config["rope_parameters"]
    heads, same = config["num_key_value_heads"], config["attention_k_eq_v"]
    keys = {
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "expert_used_count": config.get("top_k_experts"),
        "rope.freq_base": ropes["full_attention"]["rope_theta"],
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
    }
    for part, lanes in (("", config["global_head_dim"]), ("_swa", config["head_dim"])):
        names = (f"attention.key_length{part}", f"attention.value_length{part}", f"rope.dimension_count{part}")
        keys |= dict.fromkeys(names, lanes)
    if same:
        keys["attention.head_count_kv"] = [heads if each else config["num_global_key_value_heads"] for each in windowed]
    if config["use_double_wide_mlp"]:
        own = len(windowed) - shared
        keys["feed_forward_length"] = [width] * own + [2 * width] * shared
    return keys


def latent_keys(config: Config) -> dict[str, Any]:
    """Return the keys of latent attention, and of DeepSeek's mixtures."""
    rank, rotated, passed = (config[name] for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"))
    keys = {
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "attention.key_length": passed + rotated,
        "attention.value_length": None,
        "rope.dimension_count": rotated,
    }
    if config["model_type"] == "minicpm3":
        return keys
    sigmoid = config["model_type"] == "deepseek_v3"
    return keys | {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": passed + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_gating_func": 2 if sigmoid else 1,
        "expert_weights_norm": config["norm_topk_prob"] or None,
        "expert_weights_scale": config["routed_scaling_factor"],
        "leading_dense_block_count": config["first_k_dense_replace"],
    }


def nemotron_keys(config: Config) -> dict[str, Any]:
    """Return the keys of Nemotron-H."""
    kinds = [{"M": "mamba", "*": "attention"}.get(each, "mlp") for each in config["hybrid_override_pattern"]]
    experts: dict[str, Any] = {}
    if "n_routed_experts" in config:
        experts = {
            "expert_count": config["n_routed_experts"],
            "expert_group_count": config["n_group"],
            "expert_group_used_count": config["topk_group"],
            "expert_shared_count": config["n_shared_experts"],
            "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
            "expert_weights_norm": config["norm_topk_prob"],
            "expert_weights_scale": config["routed_scaling_factor"],
            "moe_latent_size": config.get("moe_latent_size"),
        }
    return experts | {
        "attention.head_count_kv": [config["num_key_value_heads"] * (kind == "attention") for kind in kinds],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "feed_forward_length": [config["intermediate_size"] * (kind == "mlp") for kind in kinds],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.group_count": config["n_groups"],
        "ssm.inner_size": config["mamba_num_heads"] * config["mamba_head_dim"],
        "ssm.state_size": config["ssm_state_size"],
        "ssm.time_step_rank": config["mamba_num_heads"],
    }


def family_keys(config: Config) -> dict[str, Any]:
    """Return the keys of the architecture that only some families have."""
    family, scaling = config["model_type"], config.get("rope_scaling") or {}
    keys: dict[str, Any] = {}
    if "norm_epsilon" in config or "layer_norm_eps" in config or family in ("nemotron", "olmo"):
        eps = config.get("norm_epsilon") or config.get("layer_norm_eps") or config.get("norm_eps", 1e-5)
        keys |= {"attention.layer_norm_epsilon": eps}
    if family == "lfm2":
        attends = [kind == "full_attention" for kind in config["layer_types"]]
        counts = [config["num_key_value_heads"] * int(each) for each in attends]
        ffn = int(config["block_ffn_dim_multiplier"] * int(2 * config["intermediate_size"] / 3))
        multiple = config["block_multiple_of"]
        keys |= {"attention.head_count_kv": counts, "shortconv.l_cache": config["conv_L_cache"]}
        keys |= {
            "feed_forward_length": -(-ffn // multiple) * multiple,
            "attention.layer_norm_rms_epsilon": config["norm_eps"],
        }
    if family == "lfm2_moe":
        attends = [kind == "full_attention" for kind in config["layer_types"]]
        keys |= {
            "attention.head_count_kv": [config["num_key_value_heads"] * int(each) for each in attends],
            "attention.sliding_window_pattern": None,
            "shortconv.l_cache": config["conv_L_cache"],
            "attention.layer_norm_rms_epsilon": config["norm_eps"],
            "leading_dense_block_count": config["num_dense_layers"],
            "expert_gating_func": 2,
        }
    if "linear_num_value_heads" in config:
        values = config["linear_num_value_heads"]
        keys |= {
            "ssm.conv_kernel": config["linear_conv_kernel_dim"],
            "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"],
            "ssm.time_step_rank": values,
            "ssm.inner_size": values * config["linear_value_head_dim"],
            "attention.recurrent_layers": [kind == "linear_attention" for kind in config["layer_types"]],
            "full_attention_interval": 4,
            "rope.dimension_sections": [11, 11, 10, 0],
        }
    if family == "gemma4_text":
        keys |= _gemma4(config)
    if family in ("cohere", "cohere2"):
        keys |= {"logit_scale": config["logit_scale"], "rope.scaling.type": "none"}
    if family == "cohere2":
        keys |= {"attention.sliding_window_pattern": None}
    if family == "gpt_neox":
        keys |= {"use_parallel_residual": config["use_parallel_residual"], "attention.head_count_kv": None}
        keys |= {"rope.dimension_count": int(config["rotary_pct"] * config["head_dim"])}
        keys |= {"rope.freq_base": float(config["rotary_emb_base"])}
    if "clip_qkv" in config:
        keys |= {"attention.clamp_kqv": config["clip_qkv"]}
    if family == "ministral3":
        keys |= {
            "rope.freq_base": float(scaling["rope_theta"]),
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling["factor"],
            "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": scaling["beta_fast"],
            "rope.scaling.yarn_beta_slow": scaling["beta_slow"],
            "rope.scaling.yarn_log_multiplier": scaling["mscale_all_dim"],
            "attention.temperature_scale": scaling["llama_4_scaling_beta"],
        }
    if "shared_expert_intermediate_size" in config:
        keys |= {"expert_shared_feed_forward_length": config["shared_expert_intermediate_size"]}
    return keys
