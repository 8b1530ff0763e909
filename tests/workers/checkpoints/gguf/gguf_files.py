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
from workers.checkpoints.checkpoint import open_weights

ARCHITECTURES: Mapping[str, gguf.MODEL_ARCH] = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "seed_oss": gguf.MODEL_ARCH.SEED_OSS,
}
PAIRED = frozenset({"llama", "mistral", "mixtral", "granite", "smollm3"})
"""Families whose queries and keys have rotated lanes side by side."""
CENTRED = frozenset({"gemma", "gemma2", "gemma3_text"})
TypeOf = Callable[[str], Type]


def make_gguf(
    checkpoint: Path,
    file: Path,
    kind: Type | TypeOf = Type.F32,
    *,
    metadata: Mapping[str, Any] | None = None,
    shards: int = 0,
) -> Path:
    """Write `file`; `kind` is the type of matrices, or gives that of each by its name in the file. `metadata` replaces
    keys. With `shards` the file is split into so many, whose names follow from its own."""
    config = json.loads((checkpoint / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    values = {"general.architecture": gguf.MODEL_ARCH_NAMES[arch]}
    values |= {f"{gguf.MODEL_ARCH_NAMES[arch]}.{key}": value for key, value in _keys(config).items()}
    values |= _tokenizer(checkpoint, config["vocab_size"])
    values |= metadata or {}
    tensors = _tensors(checkpoint, config, gguf.get_tensor_name_map(arch, config["num_hidden_layers"]))
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
        type_of = Type.F32 if tensor.ndim == 1 or ".ffn_gate_inp." in name else kind(name) if callable(kind) else kind
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
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": float(config["rope_theta"]),
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
        "rope.dimension_count": int(config["head_dim"] * config.get("partial_rotary_factor", 1)),
    }
    if config.get("layer_types") and config["model_type"] != "gpt_oss":  # whose files state no pattern
        keys["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config["layer_types"]]
    kind = scaling.get("rope_type")
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": scaling["factor"]}
    if kind in ("yarn", "longrope"):
        original = scaling.get("original_max_position_embeddings", config.get("original_max_position_embeddings"))
        keys["rope.scaling.original_context_length"] = original
    return keys


def _tensors(checkpoint: Path, config: Mapping[str, Any], names: gguf.TensorNameMap) -> Tensors:
    family, found = config["model_type"], dict[str, NDArray[Any]]()
    stacks: dict[str, list[NDArray[Any]]] = {}
    for name, stored in sorted(open_weights(checkpoint).items()):
        values = stored.astype(np.float32)
        if family in CENTRED and name.endswith("norm.weight"):
            values = values + np.float32(1)
        for part, heads in (("q_proj", config["num_attention_heads"]), ("k_proj", config["num_key_value_heads"])):
            if family in PAIRED and f".{part}." in name:
                values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if ".experts." in name:
            before, _, after = name.partition(".experts.")
            _, part, end = after.split(".")
            merged = f"layers.{name.split('.')[2]}.feed_forward.experts.{part}.{end}"
            stacks.setdefault(f"{before}.experts.{part}.{end}" if family != "mixtral" else merged, []).append(values)
            continue
        found[_name(names, name) + ".weight" * name.endswith("sinks")] = values
    found |= {_name(names, name): np.stack(values) for name, values in stacks.items()}
    return found | _divisors(config)


def _name(names: gguf.TensorNameMap, name: str) -> str:
    found: str | None = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def _divisors(config: Mapping[str, Any]) -> Tensors:
    """The tensors of positions."""
    scaling = config.get("rope_scaling") or {}
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
