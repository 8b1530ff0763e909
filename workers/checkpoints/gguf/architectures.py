"""The architectures of GGUF files that are served: the family of each, its config.json and the names of its tensors.

Rules and names are those of llama.cpp's converter, https://github.com/ggml-org/llama.cpp/tree/master/conversion, and of
how its models read their files (`src/models`): a few fields are in no file and follow from the number of layers.
"""

from collections.abc import Mapping

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.family import Family
from workers.checkpoints.architectures.fields import MAX_PARTS
from workers.checkpoints.gguf.gguf_file import GgufFile
from workers.checkpoints.gguf.keys import Keys
from workers.checkpoints.gguf.layouts.architecture import (
    AFTER,
    AROUND,
    ATTENTION,
    LLAMA,
    MLP,
    Architecture,
    Fields,
    layer_types,
    read_experts,
    read_multipliers,
    read_vision_language,
    read_window,
    set_family,
)
from workers.checkpoints.gguf.layouts.dense import DENSE
from workers.checkpoints.gguf.layouts.gemma4 import GEMMA4
from workers.checkpoints.gguf.layouts.hybrids import HYBRIDS
from workers.checkpoints.gguf.layouts.latent import LATENT
from workers.checkpoints.gguf.layouts.mixtures import MIXTRAL_EXPERTS, MIXTURES
from workers.checkpoints.gguf.rotary import rotary_fields

HEAD = "output.weight"
TOKENS = "token_embd.weight"
PROJECTOR = "clip"
"""The architecture of vision towers in files of their own."""
GEMMA_27B = {"gemma2": 46, "gemma3": 62}
"""Layers of the models whose attention scale is not that of their head's width."""


def _phi3(keys: Keys, fields: Fields) -> None:
    read_window(keys, fields)
    # LongRoPE reads it; files of models without it state it, too.
    keys.get("rope.scaling.original_context_length")
    keys.get("rope.scaling.attn_factor")


def _gemma2(keys: Keys, fields: Fields) -> None:
    read_window(keys, fields)
    fields["attn_logit_softcapping"] = keys.optional_number("attn_logit_softcapping")
    _gemma(keys, fields)


def _gemma3(keys: Keys, fields: Fields) -> None:
    read_window(keys, fields)
    fields["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10000.0)
    _gemma(keys, fields)


def _gemma(keys: Keys, fields: Fields) -> None:
    fields["final_logit_softcapping"] = keys.optional_number("final_logit_softcapping")
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        fields["layer_types"] = layer_types(keys, pattern)
    elif pattern is not None:
        fields["sliding_window_pattern"] = keys.integer("attention.sliding_window_pattern")
    large = fields["num_hidden_layers"] == GEMMA_27B[keys.architecture]
    scalar = fields["hidden_size"] // fields["num_attention_heads"] if large else fields["head_dim"]
    fields["query_pre_attn_scalar"] = scalar


def _olmo(keys: Keys, fields: Fields) -> None:
    """OLMo 3 is an OLMo 2 with windows."""
    read_window(keys, fields)
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list) and fields["sliding_window"] is not None:
        set_family(fields, "olmo3")
        fields["layer_types"] = layer_types(keys, pattern)


def _llama(keys: Keys, fields: Fields) -> None:
    """Llama and Mistral are one architecture, and Mixtral is it with experts. Its files state no windows."""
    if keys.get("expert_count"):
        set_family(fields, "mixtral")
        fields["sliding_window"] = None
        read_experts(keys, fields)


LLAMA_LIKE: Mapping[str, Architecture] = {
    "llama": Architecture("llama", LLAMA | MIXTRAL_EXPERTS, paired=True, read=_llama),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "qwen2vl": Architecture("qwen2", read=read_vision_language),
    "qwen3vl": Architecture("qwen3", read=read_vision_language),
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2", ATTENTION | MLP | AROUND, read=_gemma2),
    "gemma3": Architecture("gemma3_text", ATTENTION | MLP | AROUND, read=_gemma3, theta=1_000_000.0),
    "phi3": Architecture("phi3", LLAMA | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}, read=_phi3),
    "granite": Architecture("granite", paired=True, read=read_multipliers),
    "smollm3": Architecture("smollm3", paired=True),
    "olmo2": Architecture("olmo2", ATTENTION | MLP | AFTER, read=_olmo),
    "seed_oss": Architecture("seed_oss", ATTENTION | MLP | {"post_attention_norm": "post_attention_layernorm"}),
}
"""The dense architectures like Llama, and Mixtral."""
ARCHITECTURES: Mapping[str, Architecture] = {**LLAMA_LIKE, **DENSE, **MIXTURES, **HYBRIDS, **GEMMA4, **LATENT}
"""The architectures by `general.architecture`."""


def architecture_of(model: GgufFile) -> Architecture:
    """Return the architecture of a file. Raises `CheckpointError` with the supported ones."""
    name = Keys(model).architecture
    if name == PROJECTOR:
        problem = "the file is a projector of images: name the file of the model, and this one with --mmproj"
        raise model.error("general.architecture", problem)
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
    if not architecture.latent and keys.integer("attention.value_length", head_dim) != head_dim:
        raise keys.error("attention.value_length", f"is not attention.key_length, {head_dim}")
    family, layers = FAMILIES[architecture.family], layers_of(keys)
    listed = {name: keys.integers(name, layers)[0] for name in sorted(architecture.listed)}
    epsilon = "layer_norm_rms_epsilon" if family.norm_kind == "rms" else "layer_norm_epsilon"
    if family.norm_kind == "layer" and keys.peek(f"attention.{epsilon}") is None:
        epsilon = "layer_norm_rms_epsilon"  # as Phi-3.5-MoE's files have it
    fields: Fields = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": listed.get("feed_forward_length") or _ffn(keys),
        "num_attention_heads": heads,
        "num_key_value_heads": listed.get("attention.head_count_kv") or kv_heads_of(keys),
        "head_dim": head_dim,
        "rms_norm_eps": keys.number(f"attention.{epsilon}"),
        "max_position_embeddings": context,
        "vocab_size": _vocabulary(model),
        "tie_word_embeddings": HEAD not in model.tensors,
        "attention_bias": "blk.0.attn_output.bias" in model.tensors,
        "dtype": _dtype(model),
        "hidden_act": family.activation,
    }
    set_family(fields, architecture.family)
    rotated = keys.integer("rope.dimension_count") if architecture.latent else head_dim
    fields |= rotary_fields(keys, rotated, context, architecture.theta)
    architecture.read(keys, fields)
    _read_repeated(keys, family)
    keys.refuse_others()
    if FAMILIES[fields["model_type"]].biases is not None:
        del fields["attention_bias"]
    names = FAMILIES[fields["model_type"]].field_names
    return {names.get(name, name): value for name, value in fields.items()}


def _read_repeated(keys: Keys, family: Family) -> None:
    """Read what says nothing new: the base of positions of windowed layers if it is that of the others, and the epsilon
    of the other kind of norm."""
    if keys.peek("rope.freq_base_swa") == keys.peek("rope.freq_base"):
        keys.get("rope.freq_base_swa")
    if family.norm_kind == "layer":
        keys.get("attention.layer_norm_rms_epsilon")


def layers_of(keys: Keys) -> int:
    """Return the number of layers, without those that only predict several tokens."""
    blocks, predicting = keys.integer("block_count"), keys.get("nextn_predict_layers") or 0
    if blocks > MAX_PARTS:
        raise keys.error("block_count", f"{blocks} is more than {MAX_PARTS} layers")
    if not isinstance(predicting, int) or not 0 <= predicting < blocks:
        raise keys.error("nextn_predict_layers", f"{predicting!r} is not a number from 0 to below {blocks}")
    return blocks - predicting


def kv_heads_of(keys: Keys) -> int:
    """Return the KV heads of layers that attend: one number, or one for each layer, which is 0 where none attends."""
    name = "attention.head_count_kv"
    if not isinstance(keys.get(name), list):
        return keys.integer(name, keys.integer("attention.head_count"))
    return keys.of_some(name)


def _ffn(keys: Keys) -> int:
    """Read the width of the MLP, which files of mixtures of experts may state as 0 or not at all, and others for each
    layer, which has 0 if it has none."""
    if isinstance(keys.get("feed_forward_length"), list):
        return keys.of_some("feed_forward_length")
    if keys.get("feed_forward_length") or not keys.get("expert_feed_forward_length"):
        return keys.integer("feed_forward_length")
    return keys.integer("expert_feed_forward_length")


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
