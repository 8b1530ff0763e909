"""How the families' checkpoints differ: fields of config.json, and the names and shapes of their tensors.

Written from transformers' models, not from `workers.checkpoints.architectures`, which is tested with it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Family = Literal[
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "smollm3",
    "olmo2",
    "olmo3",
    "seed_oss",
    "phi3",
    "gemma2",
    "gemma3_text",
    "qwen3_moe",
    "mixtral",
]
Tensors = dict[str, NDArray[Any]]

ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
}
BIASED = ("llama", "qwen3", "smollm3", "olmo2", "olmo3", "gemma2", "gemma3_text", "qwen3_moe")
"""Families whose config.json has `attention_bias`."""
WINDOW = 24
"""Of the families that cannot do without: not a multiple of a tile, and shorter than the tests' prompts."""


def family_fields(family: Family, layers: int, *, attention_bias: bool) -> dict[str, Any]:
    """What config.json of a family has beside Llama's fields."""
    fields: dict[str, Any] = {"attention_bias": attention_bias} if family in BIASED else {}
    if family == "llama":
        fields["mlp_bias"] = False
    if family in ("qwen2", "qwen3"):
        fields |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": layers}
    if family in ("mistral", "phi3", "mixtral"):
        fields["sliding_window"] = None
    if family == "phi3":
        fields["original_max_position_embeddings"] = 64
    if family == "smollm3":
        fields |= {"no_rope_layers": [int((layer + 1) % 2 != 0) for layer in range(layers)]}
    if family == "olmo3":
        kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
        # transformers gives windowed layers this base, whatever the older field says, which says nothing else in any.
        fields |= {"sliding_window": WINDOW, "rope_theta": 500000.0, "layer_types": kinds}
    if family == "seed_oss":
        fields |= {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False}
    if family.startswith("gemma"):
        fields |= {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
        fields |= {"query_pre_attn_scalar": 24, "sliding_window": WINDOW}
    if family == "gemma2":
        fields |= {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0}
    if family == "gemma3_text":
        fields |= {"sliding_window_pattern": 2, "rope_local_base_freq": 100.0}
    if family == "qwen3_moe":
        fields |= {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "norm_topk_prob": False}
        fields |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False}
    if family == "mixtral":
        fields |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    return fields


def draw_weights(config: Mapping[str, Any], live: int, rng: np.random.Generator) -> Tensors:
    """Random weights for a config.json. Tokens from `live` on get zeros: they are never the most likely."""
    family, hidden, vocab = config["model_type"], config["hidden_size"], config["vocab_size"]
    draw = Drawing(rng, centred=family.startswith("gemma"))
    mask = np.arange(vocab)[:, None] < live
    tensors: Tensors = {"model.embed_tokens.weight": draw.matrix(vocab, hidden, 0.5) * mask}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = draw.matrix(vocab, hidden, 2.0) * mask
    for layer in range(config["num_hidden_layers"]):
        mlp = _mlp if layer in config.get("mlp_only_layers", []) else MLPS.get(family, _mlp)
        parts = [*_attention(config, draw), *mlp(config, draw), *_norms(config, draw)]
        tensors |= {f"model.layers.{layer}.{name}": tensor for name, tensor in parts}
    tensors["model.norm.weight"] = draw.norm(hidden)
    return tensors


class Drawing:
    """Draws from one generator, in the order in which it is asked."""

    def __init__(self, rng: np.random.Generator, *, centred: bool) -> None:
        """`centred` norms have one added to their weights."""
        self.rng = rng
        self._centred = centred

    def matrix(self, rows: int, columns: int, gain: float) -> NDArray[Any]:
        drawn: NDArray[Any] = self.rng.standard_normal((rows, columns)) * gain / columns**0.5
        return drawn.astype(np.float32)

    def norm(self, size: int, gain: float = 1.0) -> NDArray[Any]:
        drawn = gain * (1.0 + 0.1 * self.rng.standard_normal(size)).astype(np.float32)
        return drawn - np.float32(1.0) if self._centred else drawn


def _attention(config: Mapping[str, Any], draw: Drawing) -> Iterator[tuple[str, NDArray[Any]]]:
    family, hidden, head_dim = config["model_type"], config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    matrices = {"q": draw.matrix(queries, hidden, 2.0)}
    matrices |= {"k": draw.matrix(keys, hidden, 2.0), "v": draw.matrix(keys, hidden, 1.0)}
    if family == "phi3":
        yield "self_attn.qkv_proj.weight", np.concatenate(list(matrices.values()))
    else:
        yield from ((f"self_attn.{x}_proj.weight", matrix) for x, matrix in matrices.items())
    yield "self_attn.o_proj.weight", draw.matrix(hidden, queries, 1.0)
    biases = {"q": queries, "k": keys, "v": keys} if family in ("qwen2", "seed_oss") else {}
    if config.get("attention_bias") and not biases:
        biases = {"q": queries, "k": keys, "v": keys, "o": hidden}
    for x, size in biases.items():
        yield f"self_attn.{x}_proj.bias", (0.2 * draw.rng.standard_normal(size)).astype(np.float32)
    if family in ("qwen3", "qwen3_moe", "gemma3_text", "olmo2", "olmo3"):
        for x, size in (("q", queries), ("k", keys)):
            yield f"self_attn.{x}_norm.weight", draw.norm(size if family.startswith("olmo") else head_dim, 2.0)


def _mlp(config: Mapping[str, Any], draw: Drawing) -> Iterator[tuple[str, NDArray[Any]]]:
    family, hidden, ffn = config["model_type"], config["hidden_size"], config["intermediate_size"]
    gate, up = draw.matrix(ffn, hidden, 1.0), draw.matrix(ffn, hidden, 1.0)
    if family == "phi3":
        yield "mlp.gate_up_proj.weight", np.concatenate([gate, up])
    else:
        yield "mlp.gate_proj.weight", gate
        yield "mlp.up_proj.weight", up
    yield "mlp.down_proj.weight", draw.matrix(hidden, ffn, 2.0)


def _experts(config: Mapping[str, Any], draw: Drawing) -> Iterator[tuple[str, NDArray[Any]]]:
    hidden, mixtral = config["hidden_size"], config["model_type"] == "mixtral"
    count = config["num_local_experts" if mixtral else "num_experts"]
    ffn = config["intermediate_size" if mixtral else "moe_intermediate_size"]
    block, names = (
        ("block_sparse_moe", ("w1", "w3", "w2")) if mixtral else ("mlp", ("gate_proj", "up_proj", "down_proj"))
    )
    yield f"{block}.gate.weight", draw.matrix(count, hidden, 2.0)
    for expert in range(count):
        for name, (rows, columns) in zip(names, ((ffn, hidden), (ffn, hidden), (hidden, ffn)), strict=True):
            gain = 2.0 if rows == hidden else 1.0
            yield f"{block}.experts.{expert}.{name}.weight", draw.matrix(rows, columns, gain)


MLPS = {"qwen3_moe": _experts, "mixtral": _experts}
"""Of layers that have another one than `_mlp`."""


def _norms(config: Mapping[str, Any], draw: Drawing) -> Iterator[tuple[str, NDArray[Any]]]:
    names = {
        "olmo": ("post_attention_layernorm", "post_feedforward_layernorm"),
        "gemma": (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
    }
    family = next((name for name in names if config["model_type"].startswith(name)), "")
    for name in names.get(family, ("input_layernorm", "post_attention_layernorm")):
        yield f"{name}.weight", draw.norm(config["hidden_size"])
