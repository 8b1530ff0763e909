"""GGUF files made from checkpoints in Hugging Face layout, by the rules of llama.cpp's converter.

Written from https://github.com/ggml-org/llama.cpp/tree/master/conversion with the `gguf` package's own writer and table
of names, not from `workers.checkpoints.gguf`, which is tested with it.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from tests.families import Tensors
from tests.workers.checkpoints.gguf.conversions import converted, family_keys, latent_keys, nemotron_keys
from workers.checkpoints.checkpoint import open_weights

ARCHITECTURES: Mapping[str, gguf.MODEL_ARCH] = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
    "ernie4_5_moe": gguf.MODEL_ARCH.ERNIE4_5_MOE,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gemma4_text": gguf.MODEL_ARCH.GEMMA4,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "granitemoehybrid": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "seed_oss": gguf.MODEL_ARCH.SEED_OSS,
    "starcoder2": gguf.MODEL_ARCH.STARCODER2,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX,
    "cohere": gguf.MODEL_ARCH.COMMAND_R,
    "cohere2": gguf.MODEL_ARCH.COHERE2,
    "phi": gguf.MODEL_ARCH.PHI2,
    "exaone4": gguf.MODEL_ARCH.EXAONE4,
    "nemotron": gguf.MODEL_ARCH.NEMOTRON,
    "olmo": gguf.MODEL_ARCH.OLMO,
    "arcee": gguf.MODEL_ARCH.ARCEE,
    "ernie4_5": gguf.MODEL_ARCH.ERNIE4_5,
    "ministral3": gguf.MODEL_ARCH.MISTRAL3,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "lfm2_moe": gguf.MODEL_ARCH.LFM2MOE,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "qwen3_5_moe_text": gguf.MODEL_ARCH.QWEN35MOE,
    "qwen3_next": gguf.MODEL_ARCH.QWEN3NEXT,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "granitemoeshared": gguf.MODEL_ARCH.GRANITE_MOE,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": gguf.MODEL_ARCH.DEEPSEEK2,
    "minicpm3": gguf.MODEL_ARCH.MINICPM3,
    "nemotron_h": gguf.MODEL_ARCH.NEMOTRON_H,
    "phimoe": gguf.MODEL_ARCH.PHIMOE,
}
PAIRED = frozenset(
    {
        "llama",
        "mistral",
        "mixtral",
        "granite",
        "granitemoehybrid",
        "smollm3",
        "olmo",
        "arcee",
        "ministral3",
        "granitemoe",
        "granitemoeshared",
        "nemotron_h",
    }
)
"""Families whose queries and keys have rotated lanes side by side."""
CENTRED = frozenset({"gemma", "gemma2", "gemma3_text", "nemotron", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"})
MERGED = frozenset({"mixtral", "granitemoe", "granitemoehybrid", "granitemoeshared", "lfm2_moe", "phimoe"})
"""Families whose stacks of experts have names of their own."""
MAMBAS = frozenset({"granitemoehybrid", "granitemoeshared", "nemotron_h"})
"""Families with Granite's MLPs or Mamba-2."""
PLAIN = (".ffn_gate_inp.", ".ssm_a", ".ssm_d", ".ssm_conv1d.", ".shortconv.conv.", "_norm.")
"""Parts of the names of tensors that are always float32."""
TypeOf = Callable[[str], Type]


def make_gguf(
    checkpoint: Path,
    file: Path,
    kind: Type | TypeOf = Type.F32,
    *,
    metadata: Mapping[str, Any] | None = None,
    shards: int = 0,
    architecture: gguf.MODEL_ARCH | None = None,
    keys: Mapping[str, Any] | None = None,
) -> Path:
    """Write `file`; `kind` is the type of matrices, or gives that of each by its name in the file. `metadata` replaces
    keys, and `keys` adds some of the architecture, which is by default the family's. With `shards` the file is split
    into so many, whose names follow from its own."""
    config = json.loads((checkpoint / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    if "E" in config.get("hybrid_override_pattern", ""):
        arch = gguf.MODEL_ARCH.NEMOTRON_H_MOE
    arch = architecture or arch
    values = {"general.architecture": gguf.MODEL_ARCH_NAMES[arch]}
    own = _keys(config) | dict(keys or {})
    values |= {f"{gguf.MODEL_ARCH_NAMES[arch]}.{key}": value for key, value in own.items()}
    values |= _tokenizer(checkpoint, config["vocab_size"])
    values |= metadata or {}
    tensors = _tensors(checkpoint, config, gguf.get_tensor_name_map(arch, config["num_hidden_layers"] + 1))
    if not shards:
        write_gguf(file, values, tensors, kind)
        return file
    names = list(tensors)
    for number in range(shards):
        part = {name: tensors[name] for name in names[number::shards]}
        split = {"split.no": number, "split.count": shards, "split.tensors.count": len(names)}
        own = values if number == 0 else {"general.architecture": values["general.architecture"]}
        write_gguf(file.with_name(f"{file.stem}-{number + 1:05}-of-{shards:05}.gguf"), own | split, part, kind)
    return file.with_name(f"{file.stem}-00001-of-{shards:05}.gguf")


def write_gguf(
    file: Path, metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], kind: Type | TypeOf = Type.F32
) -> None:
    writer = gguf.GGUFWriter(file, str(metadata["general.architecture"]))
    for key, value in metadata.items():
        if key != "general.architecture" and value is not None:
            _add(writer, key, value)
    for name, tensor in tensors.items():
        plain = tensor.ndim == 1 or any(part in name for part in PLAIN)
        type_of = Type.F32 if plain else kind(name) if callable(kind) else kind
        if tensor.shape[-1] % gguf.GGML_QUANT_SIZES[type_of][0]:
            type_of = Type.F16  # llama.cpp's tool also leaves rows that are no whole blocks
        writer.add_tensor(name, gguf.quantize(tensor.astype(np.float32), type_of), raw_dtype=type_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the architecture."""
    scaling = config.get("rope_scaling") or {}
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps"),
        "rope.freq_base": float(config.get("rope_theta", 0)),
        "vocab_size": config["vocab_size"],
        "expert_count": config.get("num_local_experts") or config.get("num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "attention.scale": config.get("attention_multiplier"),
        "embedding_scale": config.get("embedding_multiplier"),
        "residual_scale": config.get("residual_multiplier"),
        "logit_scale": config.get("logits_scaling"),
        "attention.sliding_window": config.get("sliding_window") or None,
        "attention.sliding_window_pattern": config.get("sliding_window_pattern"),
        "rope.freq_base_swa": config.get("rope_local_base_freq"),
        "rope.dimension_count": int(config.get("head_dim", 0) * config.get("partial_rotary_factor", 1)) or None,
    }
    if config["model_type"] == "granitemoehybrid":
        keys |= _mamba_keys(config)
    elif config["model_type"] == "nemotron_h":
        keys |= nemotron_keys(config)
    elif config.get("layer_types") and config["model_type"] != "gpt_oss":  # whose files state no pattern
        keys["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config["layer_types"]]
    if config["model_type"] in ("glm4_moe", "ernie4_5_moe"):
        keys |= _routed(config)
    if config["model_type"] == "qwen2_moe":
        keys["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    if config["model_type"] == "granitemoeshared":
        keys["expert_shared_feed_forward_length"] = config["shared_intermediate_size"]
    if "kv_lora_rank" in config:
        keys |= latent_keys(config)
    kind = scaling.get("rope_type")
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": scaling["factor"]}
    if kind in ("yarn", "longrope"):
        original = scaling.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
        keys["rope.scaling.original_context_length"] = original
    return keys | family_keys(config)


def _routed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of mixtures with dense layers and a number of shared experts."""
    if config["model_type"] == "ernie4_5_moe":
        return {
            "expert_count": config["moe_num_experts"],
            "expert_used_count": config["moe_k"],
            "interleave_moe_layer_step": 1,
            "leading_dense_block_count": config["moe_layer_start_index"],
            "expert_shared_count": config["moe_num_shared_experts"],
            "expert_shared_feed_forward_length": config["intermediate_size"] // config["num_key_value_heads"],
        }
    return {
        "block_count": config["num_hidden_layers"] + config["num_nextn_predict_layers"],
        "nextn_predict_layers": config["num_nextn_predict_layers"],
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
        "expert_gating_func": int(gguf.ExpertGatingFuncType.SIGMOID),
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
    }


def _mamba_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of Granite 4."""
    kinds, heads = config["layer_types"], config["num_key_value_heads"]
    return {
        "attention.head_count_kv": [heads if kind == "attention" else 0 for kind in kinds],
        "expert_count": config["num_local_experts"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "rope.scaling.finetuned": config["position_embedding_type"] == "rope",
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.inner_size": config["mamba_n_heads"] * config["mamba_d_head"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_n_heads"],
    }


def _mamba_tensors(name: str, values: NDArray[Any], config: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Granite 4's tensors, as they are named and shaped."""
    layer, part = f"blk.{name.split('.')[2]}.", name.partition(".mamba.")[2] or name.partition(".mixer.")[2]
    groups = int(config.get("mamba_n_groups") or config.get("n_groups", 1))
    if ".shared_mlp.input_linear" in name:
        names = [f"{layer}{part}{_shared(config)}.weight" for part in ("ffn_gate", "ffn_up")]
        return dict(zip(names, np.split(values, 2), strict=True))
    match part:
        case "A_log":
            return {f"{layer}ssm_a": -np.exp(values)[:, None]}
        case "D":
            return {f"{layer}ssm_d": values[:, None]}
        case "conv1d.weight":
            return {f"{layer}ssm_conv1d.weight": values[:, 0]}
        case "norm.weight":
            return {f"{layer}ssm_norm.weight": values.reshape(groups, -1)}
        case "dt_bias":
            return {f"{layer}ssm_dt.bias": values}
    return {f"{layer}ffn_down{_shared(config)}.weight": values} if ".shared_mlp.output_linear" in name else {}


def _shared(config: Mapping[str, Any]) -> str:
    """The end of the names of Granite's MLP, which is a shared expert beside others."""
    return "_shexp" if config["num_local_experts"] else ""


def _tensors(checkpoint: Path, config: Mapping[str, Any], names: gguf.TensorNameMap) -> Tensors:
    family, found = config["model_type"], dict[str, NDArray[Any]]()
    stacks: dict[str, list[NDArray[Any]]] = {}
    stored = sorted(open_weights(checkpoint).items())
    for name, values in (part for each in stored for part in converted(config, each[0], each[1].astype(np.float32))):
        if family in CENTRED and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            values = values + np.float32(1)
        for part, heads in (("q_proj", config["num_attention_heads"]), ("k_proj", config["num_key_value_heads"])):
            if family in PAIRED and f".{part}." in name:
                values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if ".norms." in name:
            before, _, _ = name.partition(".norms.")
            stacks.setdefault(f"{before}.weight", []).append(values)
            continue
        if name.endswith(".expert_bias"):
            name = f"{name}.bias"
        if name.endswith("e_score_correction_bias") or "shared_expert_gate" in name:
            name, values = name.replace("e_score_correction_bias", "e_score_correction.bias"), values.reshape(-1)
        mapped = _mamba_tensors(name, values, config) if family in MAMBAS and ".layers." in name else {}
        if mapped:
            found |= mapped
            continue
        if ".experts." in name:
            before, _, after = name.partition(".experts.")
            _, part, end = after.split(".")
            merged = f"layers.{name.split('.')[2]}.feed_forward.experts.{part}.{end}"
            stacks.setdefault(f"{before}.experts.{part}.{end}" if family not in MERGED else merged, []).append(values)
            continue
        found[_name(names, name) + ".weight" * name.endswith(("sinks", "layer_scalar"))] = values
    merged_stacks = {name: np.stack(values) for name, values in stacks.items()}
    if family == "gemma4_text":  # gates before the other inputs, in one matrix of each expert
        for name in [name for name in merged_stacks if name.endswith(".gate_proj.weight")]:
            parts = [merged_stacks.pop(name.replace("gate_proj", part)) for part in ("gate_proj", "up_proj")]
            merged_stacks[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(parts, axis=1)
    found |= {_name(names, name): values for name, values in merged_stacks.items()}
    return found | _divisors(config)


def _name(names: gguf.TensorNameMap, name: str) -> str:
    found: str | None = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if name.endswith("router.scale") or name.endswith("per_expert_scale"):
        part = "ffn_gate_inp" if name.endswith("router.scale") else "ffn_down_exps"
        return f"blk.{name.split('.')[2]}.{part}.scale"
    assert found is not None, name
    return found


def _divisors(config: Mapping[str, Any]) -> Tensors:
    """The tensors of positions."""
    scaling = config.get("rope_scaling") or {}
    if config["model_type"] == "gemma4_text":
        pairs, part = config["global_head_dim"] // 2, config["rope_parameters"]["full_attention"]
        rotated = int(pairs * part["partial_rotary_factor"])
        return {"rope_freqs.weight": np.array([1.0] * rotated + [1e30] * (pairs - rotated), np.float32)}
    if scaling.get("rope_type") == "longrope":
        parts = {"long": scaling["long_factor"], "short": scaling["short_factor"]}
        return {f"rope_factors_{name}.weight": np.array(values, np.float32) for name, values in parts.items()}
    if scaling.get("rope_type") != "llama3":
        return {}
    dims = config["head_dim"]
    length = 2 * np.pi * config["rope_theta"] ** (np.arange(0, dims, 2) / dims)
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = original / scaling["low_freq_factor"], original / scaling["high_freq_factor"]
    smooth = (original / length - scaling["low_freq_factor"]) / (
        scaling["high_freq_factor"] - scaling["low_freq_factor"]
    )
    between = 1 / ((1 - smooth) / factor + smooth)
    divisors = np.where(length < high, 1.0, np.where(length > low, factor, between))
    return {"rope_freqs.weight": divisors.astype(np.float32)}


def _tokenizer(checkpoint: Path, vocab: int) -> dict[str, Any]:
    """The keys of a byte-level BPE tokenizer with GPT-2's pre-tokenizer."""
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    tokens, types = [f"[PAD{i}]" for i in range(vocab)], [gguf.TokenType.UNUSED] * vocab
    for token, ident in tokenizer["model"]["vocab"].items():
        tokens[ident], types[ident] = token, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], gguf.TokenType.CONTROL
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in tokenizer["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": tokens.index(config["eos_token"]),
        "tokenizer.ggml.padding_token_id": tokens.index(config["pad_token"]),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": config["chat_template"],
    }
