"""The architectures of GGUF files that are served: the family of each, its config.json and the names of its tensors.

Rules and names are those of llama.cpp's converter, https://github.com/ggml-org/llama.cpp/tree/master/conversion, and of
how its models read their files (`src/models`): a few fields are in no file and follow from the number of layers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.rotary import YARN, rotary_fields

HEAD = "output.weight"
TOKENS = "token_embd.weight"
OUTSIDE: Mapping[str, str] = {
    TOKENS: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    HEAD: "lm_head.weight",
}
"""Hugging Face's names of the tensors outside of layers."""
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
BEFORE = {"ffn_norm": "post_attention_layernorm"}
AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
AROUND = AFTER | {"ffn_norm": "pre_feedforward_layernorm"}
LLAMA = ATTENTION | MLP | BEFORE
GEMMA_27B = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose attention scale is not that of their head's width."""

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One value of `general.architecture`."""

    family: str
    """The family by `model_type` of config.json."""
    names: Mapping[str, str] = field(default_factory=lambda: LLAMA)
    """Hugging Face's names of a layer's modules."""
    paired: bool = False
    """Rows of queries and keys are in pairs of lanes that are rotated together, not in two halves."""
    read: Callable[[Keys, Fields], None] = lambda keys, fields: None
    """Adds the fields that other architectures do not have."""
    theta: float = 10000.0
    """RoPE base of files that state none."""


def _window(keys: Keys, fields: Fields) -> None:
    """Read a window that may be 0 for none."""
    fields["sliding_window"] = (
        keys.integer("attention.sliding_window") if keys.get("attention.sliding_window") else None
    )


def _phi3(keys: Keys, fields: Fields) -> None:
    _window(keys, fields)
    # LongRoPE reads it; files of models without it state it, too.
    keys.get("rope.scaling.original_context_length")
    keys.get("rope.scaling.attn_factor")


def _gemma2(keys: Keys, fields: Fields) -> None:
    _window(keys, fields)
    fields["attn_logit_softcapping"] = keys.optional_number("attn_logit_softcapping")
    _gemma(keys, fields)


def _gemma3(keys: Keys, fields: Fields) -> None:
    _window(keys, fields)
    fields["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10000.0)
    _gemma(keys, fields)


def _gemma(keys: Keys, fields: Fields) -> None:
    fields["final_logit_softcapping"] = keys.optional_number("final_logit_softcapping")
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        fields["layer_types"] = _layer_types(keys, pattern)
    elif pattern is not None:
        fields["sliding_window_pattern"] = keys.integer("attention.sliding_window_pattern")
    large = fields["num_hidden_layers"] == GEMMA_27B[keys.architecture]
    scalar = fields["hidden_size"] // fields["num_attention_heads"] if large else fields["head_dim"]
    fields["query_pre_attn_scalar"] = scalar


def _layer_types(keys: Keys, pattern: list[Any]) -> list[str]:
    if not all(isinstance(windowed, bool) for windowed in pattern):
        raise keys.error("attention.sliding_window_pattern", "is neither a period nor a list of true and false")
    return ["sliding_attention" if windowed else "full_attention" for windowed in pattern]


def _granite(keys: Keys, fields: Fields) -> None:
    for key, name in (
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ):
        value = keys.optional_number(key)
        if value is not None:
            fields[name] = value
    fields.setdefault("attention_multiplier", fields["head_dim"] ** -0.5)


def _olmo(keys: Keys, fields: Fields) -> None:
    """OLMo 3 is an OLMo 2 with windows."""
    _window(keys, fields)
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list) and fields["sliding_window"] is not None:
        _set_family(fields, "olmo3")
        fields["layer_types"] = _layer_types(keys, pattern)


def _qwen3_moe(keys: Keys, fields: Fields) -> None:
    _experts(keys, fields)
    fields["moe_intermediate_size"] = keys.integer("expert_feed_forward_length")
    fields["norm_topk_prob"] = True


def _gpt_oss(keys: Keys, fields: Fields) -> None:
    """The ends of YaRN's ramp are whole lanes in llama.cpp, but not as the model was trained."""
    _window(keys, fields)
    _experts(keys, fields)
    if keys.integer("expert_feed_forward_length", fields["intermediate_size"]) != fields["intermediate_size"]:
        raise keys.error("expert_feed_forward_length", "is not feed_forward_length")
    fields["attention_bias"] = True
    if fields.get("rope_scaling", {}).get("rope_type") == YARN:
        fields["rope_scaling"]["truncate"] = False


def _llama(keys: Keys, fields: Fields) -> None:
    """Llama and Mistral are one architecture, and Mixtral is it with experts. Its files state no windows."""
    if keys.get("expert_count"):
        _set_family(fields, "mixtral")
        fields["sliding_window"] = None
        _experts(keys, fields)


def _experts(keys: Keys, fields: Fields) -> None:
    fields["num_local_experts"] = keys.integer("expert_count")
    fields["num_experts_per_tok"] = keys.integer("expert_used_count")


def _set_family(fields: Fields, family: str) -> None:
    fields.update(model_type=family, architectures=[FAMILIES[family].architecture])


QWEN3_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
GPT_OSS = {
    "attn_sinks": "self_attn.sinks",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
    **{name: module for name, module in QWEN3_EXPERTS.items() if name.endswith("_exps")},
}
MIXTRAL_EXPERTS = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", LLAMA | MIXTRAL_EXPERTS, paired=True, read=_llama),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen3moe": Architecture("qwen3_moe", LLAMA | QWEN3_EXPERTS, read=_qwen3_moe),
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2", ATTENTION | MLP | AROUND, read=_gemma2),
    "gemma3": Architecture("gemma3_text", ATTENTION | MLP | AROUND, read=_gemma3, theta=1_000_000.0),
    "phi3": Architecture("phi3", LLAMA | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}, read=_phi3),
    "gpt-oss": Architecture("gpt_oss", ATTENTION | GPT_OSS, read=_gpt_oss),
    "granite": Architecture("granite", paired=True, read=_granite),
    "smollm3": Architecture("smollm3", paired=True),
    "olmo2": Architecture("olmo2", ATTENTION | MLP | AFTER, read=_olmo),
    "seed_oss": Architecture("seed_oss", ATTENTION | MLP | {"post_attention_norm": "post_attention_layernorm"}),
}
"""The architectures by `general.architecture`."""


def architecture_of(model: GgufFile) -> Architecture:
    """Return the architecture of a file. Raises `CheckpointError` with the supported ones."""
    name = Keys(model).architecture
    if name not in ARCHITECTURES:
        problem = f"{name!r} is not supported, only {', '.join(ARCHITECTURES)}"
        raise model.error("general.architecture", problem)
    return ARCHITECTURES[name]


def config_fields(model: GgufFile) -> Fields:
    """Return the fields of config.json that the metadata means. Raises `CheckpointError`."""
    architecture, keys = architecture_of(model), Keys(model)
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    context = keys.integer("context_length")
    head_dim = keys.integer("attention.key_length", max(1, hidden // heads))
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise keys.error("attention.value_length", f"is not attention.key_length, {head_dim}")
    fields: Fields = {
        "hidden_size": hidden,
        "num_hidden_layers": keys.integer("block_count"),
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": context,
        "vocab_size": _vocabulary(model),
        "tie_word_embeddings": HEAD not in model.tensors,
        "attention_bias": "blk.0.attn_output.bias" in model.tensors,
        "dtype": _dtype(model),
    }
    if FAMILIES[architecture.family].biases is not None:
        del fields["attention_bias"]
    _set_family(fields, architecture.family)
    fields |= rotary_fields(keys, head_dim, context, architecture.theta)
    architecture.read(keys, fields)
    keys.refuse_others()
    return fields


def _vocabulary(model: GgufFile) -> int:
    tensor = model.tensors.get(TOKENS)
    if tensor is None:
        raise model.error(TOKENS, "the tensor is missing")
    return tensor.shape[0]


def _dtype(model: GgufFile) -> str:
    """The type of activations: that of most weights, bfloat16 if they are quantized."""
    counts: dict[str, int] = {}
    for tensor in model.tensors.values():
        if len(tensor.shape) > 1:
            counts[tensor.type.name] = counts.get(tensor.type.name, 0) + tensor.nbytes
    most = max(counts, key=lambda name: counts[name], default="F32")
    return {"F32": "float32", "F16": "float16"}.get(most, "bfloat16")
