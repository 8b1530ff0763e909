"""Checkpoints of the families, one entry each with the differences from Llama's, and random weights for them.

Written from transformers' models, not from `workers.checkpoints.architectures`, which is tested with it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests.reference.layers import dense_layers, gemma4_layers, latent_layers, mamba_layers

Tensors = dict[str, NDArray[Any]]
NamedTensors = Iterator[tuple[str, NDArray[Any]]]

WINDOW = 24
"""The window of families that need one: not a multiple of a tile, and shorter than the tests' prompts."""
BEFORE = ("input_layernorm", "post_attention_layernorm")
AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
AROUND = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


class RandomWeights:
    """Samples from one generator, in the order of the calls."""

    def __init__(self, rng: np.random.Generator, *, centred: bool) -> None:
        """`centred` norms have one added to their weights."""
        self.rng = rng
        self._centred = centred

    def matrix(self, rows: int, columns: int, gain: float) -> NDArray[Any]:
        sampled: NDArray[Any] = self.rng.standard_normal((rows, columns)) * gain / columns**0.5
        return sampled.astype(np.float32)

    def norm(self, size: int, gain: float = 1.0) -> NDArray[Any]:
        sampled = gain * (1.0 + 0.1 * self.rng.standard_normal(size)).astype(np.float32)
        return sampled - np.float32(1.0) if self._centred else sampled

    def bias(self, size: int) -> NDArray[Any]:
        return (0.2 * self.rng.standard_normal(size)).astype(np.float32)


Mlp = Callable[[Mapping[str, Any], int, RandomWeights], NamedTensors]
"""The tensors of the MLP of one layer, by its number, named within the layer, for a config.json."""


def dense(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    yield "mlp.gate_proj.weight", weights.matrix(ffn, hidden, 1.0)
    yield "mlp.up_proj.weight", weights.matrix(ffn, hidden, 1.0)
    yield "mlp.down_proj.weight", weights.matrix(hidden, ffn, 2.0)


def qwen_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    if layer in config["mlp_only_layers"]:
        return dense(config, layer, weights)
    sizes = (config["num_experts"], config["moe_intermediate_size"], config["hidden_size"])
    return _experts("mlp", ("gate_proj", "up_proj", "down_proj"), sizes, weights)


def mixtral_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    sizes = (config["num_local_experts"], config["intermediate_size"], config["hidden_size"])
    return _experts("block_sparse_moe", ("w1", "w3", "w2"), sizes, weights)


def _experts(
    block: str, names: tuple[str, str, str], sizes: tuple[int, int, int], weights: RandomWeights
) -> NamedTensors:
    """`names` are those of gate, up and down; `sizes` the number of experts and the widths of one and of the model."""
    count, ffn, hidden = sizes
    yield f"{block}.gate.weight", weights.matrix(count, hidden, 2.0)
    for expert in range(count):
        for name, (rows, columns) in zip(names, ((ffn, hidden), (ffn, hidden), (hidden, ffn)), strict=True):
            gain = 2.0 if rows == hidden else 1.0
            yield f"{block}.experts.{expert}.{name}.weight", weights.matrix(rows, columns, gain)


def shared_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Qwen's mixture with an expert that computes every row, with a gate."""
    if layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"]:
        yield from dense(config, layer, weights)
        return
    hidden, ffn = config["hidden_size"], config["shared_expert_intermediate_size"]
    yield from qwen_experts(config, layer, weights)
    for name, rows, columns, gain in (("gate", ffn, hidden, 1.0), ("up", ffn, hidden, 1.0), ("down", hidden, ffn, 2.0)):
        yield f"mlp.shared_expert.{name}_proj.weight", weights.matrix(rows, columns, gain)
    yield "mlp.shared_expert_gate.weight", weights.matrix(1, hidden, 2.0)


def olmoe_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    sizes = (config["num_experts"], config["intermediate_size"], config["hidden_size"])
    return _experts("mlp", ("gate_proj", "up_proj", "down_proj"), sizes, weights)


def granite_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Experts in stacks, the gates before the up matrices, and the shared expert of some models likewise."""
    count, ffn, hidden = config["num_local_experts"], config["intermediate_size"], config["hidden_size"]
    yield "block_sparse_moe.router.layer.weight", weights.matrix(count, hidden, 2.0)
    stacks = [[weights.matrix(2 * ffn, hidden, 1.0), weights.matrix(hidden, ffn, 2.0)] for _ in range(count)]
    for number, name in enumerate(("input_linear", "output_linear")):
        yield f"block_sparse_moe.{name}.weight", np.stack([expert[number] for expert in stacks])
    shared = config.get("shared_intermediate_size")
    if shared is not None:
        yield "shared_mlp.input_linear.weight", weights.matrix(2 * shared, hidden, 1.0)
        yield "shared_mlp.output_linear.weight", weights.matrix(hidden, shared, 2.0)


def routed_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """GLM-4.5's mixture behind dense layers: a bias of the router, and experts that compute every row."""
    if layer < config["first_k_dense_replace"]:
        yield from dense(config, layer, weights)
        return
    count = config["n_routed_experts"]
    yield from _counted_experts(config, count, config["n_shared_experts"], weights)
    yield "mlp.gate.e_score_correction_bias", weights.bias(count)


def softmax_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """DeepSeek-V2's mixture behind dense layers, whose router has no bias."""
    yield from ((name, each) for name, each in routed_experts(config, layer, weights) if not name.endswith("bias"))


def ernie_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """ERNIE's, whose bias is a matrix of one row."""
    if layer < config["moe_layer_start_index"]:
        yield from dense(config, layer, weights)
        return
    count = config["moe_num_experts"]
    yield from _counted_experts(config, count, config["moe_num_shared_experts"], weights)
    yield "mlp.moe_statics.e_score_correction_bias", weights.bias(count)[None] / 2


def _counted_experts(config: Mapping[str, Any], count: int, shared: int, weights: RandomWeights) -> NamedTensors:
    """Experts, and a number of shared ones that are one MLP."""
    ffn, hidden = config["moe_intermediate_size"], config["hidden_size"]
    yield from _experts("mlp", ("gate_proj", "up_proj", "down_proj"), (count, ffn, hidden), weights)
    for name, tensor in dense({"hidden_size": hidden, "intermediate_size": shared * ffn}, 0, weights):
        yield name.replace("mlp.", "mlp.shared_experts."), tensor


def lfm2_experts(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Experts of LFM2 behind dense layers, with a bias of the router."""
    names = ("w1", "w3", "w2")
    if layer < config["num_dense_layers"]:
        for name, (_, tensor) in zip(names, dense(config, layer, weights), strict=True):
            yield f"feed_forward.{name}.weight", tensor
        return
    sizes = (config["num_experts"], config["moe_intermediate_size"], config["hidden_size"])
    yield from _experts("feed_forward", names, sizes, weights)
    yield "feed_forward.expert_bias", weights.bias(config["num_experts"])


def phi_layer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Attention and experts of Mixtral's names, behind norms with biases."""
    yield from _attention(FAMILIES["phimoe"], config, weights)
    yield from mixtral_experts(config, layer, weights)
    for name in BEFORE:
        yield f"{name}.weight", weights.norm(config["hidden_size"])
        yield f"{name}.bias", weights.bias(config["hidden_size"])


def granite_mlp(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """The shared expert, beside others if the model has any."""
    hidden, shared = config["hidden_size"], config["shared_intermediate_size"]
    if config["num_local_experts"]:
        yield from granite_experts(config, layer, weights)
        return
    yield "shared_mlp.input_linear.weight", weights.matrix(2 * shared, hidden, 1.0)
    yield "shared_mlp.output_linear.weight", weights.matrix(hidden, shared, 2.0)


def granite_mixer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Granite 4: Mamba-2 or Llama's attention."""
    if config["layer_types"][layer] == "attention":
        return _attention(FAMILIES["granitemoehybrid"], config, weights)
    return mamba_layers.granite_mamba(config, weights)


def gpt_oss_layer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Attention with sinks, and experts in stacks [inputs, outputs], whose gates and ups alternate."""
    count, ffn, hidden = config["num_local_experts"], config["intermediate_size"], config["hidden_size"]
    yield from _attention(FAMILIES["gpt_oss"], config, weights)
    yield "self_attn.sinks", weights.bias(config["num_attention_heads"]) * 10
    yield "mlp.router.weight", weights.matrix(count, hidden, 2.0)
    yield "mlp.router.bias", weights.bias(count)
    for name, outputs, inputs, gain in (("gate_up_proj", 2 * ffn, hidden, 3.0), ("down_proj", hidden, ffn, 1.0)):
        yield f"mlp.experts.{name}", np.stack([weights.matrix(outputs, inputs, gain).T for _ in range(count)])
        yield f"mlp.experts.{name}_bias", np.stack([weights.bias(outputs) for _ in range(count)])
    for name in BEFORE:
        yield f"{name}.weight", weights.norm(hidden)


def qwen3_next_mixer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """Qwen 3.5's, with the projections of a key head and its value heads behind those of the one before."""
    parts = dict(qwen3_5_mixer(config, layer, weights))
    if "linear_attn.A_log" not in parts:
        yield from parts.items()
        return
    hidden, heads = config["hidden_size"], config["linear_num_key_heads"]
    keys = heads * config["linear_key_head_dim"]
    qkv, z, b, a = (parts.pop(f"linear_attn.in_proj_{name}.weight") for name in ("qkv", "z", "b", "a"))
    fused = [each.reshape(heads, -1, hidden) for each in (*np.split(qkv, [keys, 2 * keys]), z)]
    gates = [each.reshape(heads, -1, hidden) for each in (b, a)]
    yield "linear_attn.in_proj_qkvz.weight", np.concatenate(fused, axis=1).reshape(-1, hidden)
    yield "linear_attn.in_proj_ba.weight", np.concatenate(gates, axis=1).reshape(-1, hidden)
    yield from parts.items()


def lfm2_mixer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """A gated short convolution, or attention under LFM2's names."""
    hidden, taps = config["hidden_size"], config["conv_L_cache"]
    if config["layer_types"][layer] == "full_attention":
        names = {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}
        for name, tensor in _attention(FAMILIES["lfm2"], config, weights):
            block, part, kind = name.split(".")
            yield f"{block}.{names.get(part, part)}.{kind}", tensor
        return
    yield "conv.in_proj.weight", weights.matrix(3 * hidden, hidden, 1.0)
    yield "conv.conv.weight", weights.matrix(hidden, taps, 1.5)[:, None]
    yield "conv.out_proj.weight", weights.matrix(hidden, hidden, 1.0)


def lfm2_mlp(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """The width is two thirds of `intermediate_size`, times a factor, rounded up to a multiple."""
    hidden, multiple = config["hidden_size"], config["block_multiple_of"]
    ffn = int(config["block_ffn_dim_multiplier"] * int(2 * config["intermediate_size"] / 3))
    ffn = (ffn + multiple - 1) // multiple * multiple
    yield "feed_forward.w1.weight", weights.matrix(ffn, hidden, 1.0)
    yield "feed_forward.w3.weight", weights.matrix(ffn, hidden, 1.0)
    yield "feed_forward.w2.weight", weights.matrix(hidden, ffn, 2.0)


def qwen3_5_mixer(config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """A gated delta network, or attention with a gate behind the queries of each head."""
    hidden, heads, head_dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    if config["layer_types"][layer] == "full_attention":
        for name, tensor in _attention(FAMILIES["qwen3_5_text"], config, weights):
            if name == "self_attn.q_proj.weight":
                queries = tensor.reshape(heads, head_dim, hidden)
                gates = weights.matrix(heads * head_dim, hidden, 2.0).reshape(queries.shape)
                tensor = np.concatenate([queries, gates], axis=1).reshape(-1, hidden)
            yield name, tensor
        return
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    count, lanes = config["linear_num_value_heads"], config["linear_value_head_dim"]
    for name, size in (("qkv", 2 * keys + count * lanes), ("z", count * lanes), ("b", count), ("a", count)):
        yield f"linear_attn.in_proj_{name}.weight", weights.matrix(size, hidden, 2.0)
    taps = weights.matrix(2 * keys + count * lanes, config["linear_conv_kernel_dim"], 2.0)
    yield "linear_attn.conv1d.weight", taps[:, None]
    yield "linear_attn.A_log", np.log(weights.rng.uniform(0.05, 4.0, count)).astype(np.float32)
    yield "linear_attn.dt_bias", weights.bias(count)
    yield "linear_attn.norm.weight", 1.0 + weights.bias(lanes)  # never centred
    yield "linear_attn.out_proj.weight", weights.matrix(hidden, count * lanes, 1.0)


@dataclass(frozen=True)
class Traits:
    """The properties of a family's checkpoints; the defaults are Llama's."""

    architecture: str
    """The class in transformers."""
    fields: Callable[[int], Mapping[str, Any]] = lambda layers: {}
    """Further fields of config.json, for a number of layers."""
    optional_bias: bool = True
    """config.json has `attention_bias`, which gives all four projections of attention a bias."""
    qkv_bias: bool = False
    """Queries, keys and values always have a bias, the output never."""
    norms: tuple[str, ...] = BEFORE
    """The norms of a layer."""
    centred_norms: bool = False
    """One is added to the weights of norms."""
    head_norm: Literal["each", "all"] | None = None
    """Norms of queries and keys: of each head, or of all heads together."""
    mtp: bool = False
    """The checkpoint has heads for multi-token prediction."""
    extra_layer: bool = False
    """The checkpoint has a tensor of a layer behind the last one, for multi-token prediction."""
    fused: bool = False
    """Queries, keys and values are one matrix, and so are gate and up."""
    mlp: Mlp = dense
    layer: Callable[[Mapping[str, Any], int, RandomWeights], NamedTensors] | None = None
    """The tensors of a layer, where they are not like Llama's: `norms`, `head_norm` and `mlp` do not matter then."""
    beside: Callable[[Mapping[str, Any], RandomWeights], NamedTensors] | None = None
    """Further tensors outside of layers."""
    names: tuple[str, str, str, str] = ("model.embed_tokens", "model.layers.", "model.norm", "lm_head")
    """The embedding, what the names of layers begin with, the last norm, and the head."""
    norm_weight: bool = True
    norm_bias: bool = False
    head_bias: bool = False
    """The last norm has a weight and a bias, and logits have a bias."""
    without: tuple[str, ...] = ()
    """Fields that config.json does not have."""
    mixer: Mlp | None = None
    """The tensors that mix rows with earlier ones, where they are not Llama's attention."""
    served_as: str | None = None
    """The `model_type` in transformers, if it is another one: the model's own code is not in transformers."""


MULTIPLIED = {
    "embedding_multiplier": 1.7,
    "attention_multiplier": 0.4,
    "residual_multiplier": 0.6,
    "logits_scaling": 0.7,
}
QWEN_EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def _hybrid_fields(layers: int) -> dict[str, Any]:
    return {
        "layer_types": ["full_attention" if layer % 2 else "linear_attention" for layer in range(layers)],
        "partial_rotary_factor": 0.5,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    }


def _gpt_oss_fields(layers: int) -> dict[str, Any]:
    return {
        "attention_bias": True,
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
        "sliding_window": WINDOW,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "swiglu_limit": 7.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 512,
            "truncate": False,
        },
    }


GELU = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
WINDOWED_GEMMA = GELU | {"query_pre_attn_scalar": 24, "sliding_window": WINDOW}
"""Fields that Gemma 2 and 3 share."""


def _olmo3_fields(layers: int) -> dict[str, Any]:
    kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    # transformers gives windowed layers this base whatever the older field says, so it cannot be another one.
    return {"sliding_window": WINDOW, "rope_theta": 500000.0, "layer_types": kinds}


FAMILIES: Mapping[str, Traits] = {
    "llama": Traits("LlamaForCausalLM", lambda layers: {"mlp_bias": False}),
    "qwen2": Traits(
        "Qwen2ForCausalLM",
        lambda layers: {"use_sliding_window": False, "sliding_window": None, "max_window_layers": layers},
        optional_bias=False,
        qkv_bias=True,
    ),
    "mimo": Traits(
        "MiMoForCausalLM",
        lambda layers: {
            "attention_bias": True,
            "num_nextn_predict_layers": 1,
            "use_sliding_window": False,
            "sliding_window": None,
            "max_window_layers": layers,
        },
        optional_bias=False,
        qkv_bias=True,
        mtp=True,
        served_as="qwen2",
    ),
    "qwen3": Traits(
        "Qwen3ForCausalLM",
        lambda layers: {"use_sliding_window": False, "sliding_window": None, "max_window_layers": layers},
        head_norm="each",
    ),
    "mistral": Traits("MistralForCausalLM", lambda layers: {"sliding_window": None}, optional_bias=False),
    "smollm3": Traits(
        "SmolLM3ForCausalLM",
        lambda layers: {"no_rope_layers": [int((layer + 1) % 2 != 0) for layer in range(layers)]},
    ),
    "olmo2": Traits("Olmo2ForCausalLM", norms=AFTER, head_norm="all"),
    "olmo3": Traits("Olmo3ForCausalLM", _olmo3_fields, norms=AFTER, head_norm="all"),
    "seed_oss": Traits(
        "SeedOssForCausalLM",
        lambda layers: {"attention_bias": True, "attention_out_bias": False, "mlp_bias": False},
        optional_bias=False,
        qkv_bias=True,
    ),
    "phi3": Traits(
        "Phi3ForCausalLM",
        lambda layers: {"sliding_window": None, "original_max_position_embeddings": 64},
        optional_bias=False,
        fused=True,
    ),
    "gemma": Traits("GemmaForCausalLM", lambda layers: GELU, centred_norms=True),
    "gemma2": Traits(
        "Gemma2ForCausalLM",
        lambda layers: WINDOWED_GEMMA | {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0},
        norms=AROUND,
        centred_norms=True,
    ),
    "gemma3_text": Traits(
        "Gemma3ForCausalLM",
        lambda layers: WINDOWED_GEMMA | {"sliding_window_pattern": 2, "rope_local_base_freq": 100.0},
        norms=AROUND,
        centred_norms=True,
        head_norm="each",
    ),
    "gemma4_text": Traits(
        "Gemma4ForCausalLM",
        gemma4_layers.fields,
        optional_bias=False,
        layer=gemma4_layers.layer,
        beside=gemma4_layers.beside_layers,
        without=("rope_theta",),
    ),
    "gemma4_unified_text": Traits(
        "Gemma4UnifiedForCausalLM",
        lambda layers: dict(gemma4_layers.fields(layers)) | {"hidden_size_per_layer_input": 0},
        optional_bias=False,
        layer=gemma4_layers.layer,
        without=("rope_theta",),
    ),
    "granite": Traits(
        "GraniteForCausalLM",
        lambda layers: MULTIPLIED | {"mlp_bias": False},
    ),
    "qwen3_moe": Traits(
        "Qwen3MoeForCausalLM",
        lambda layers: {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "use_sliding_window": False,
        },
        head_norm="each",
        mlp=qwen_experts,
    ),
    "mixtral": Traits(
        "MixtralForCausalLM",
        lambda layers: {"sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2},
        optional_bias=False,
        mlp=mixtral_experts,
    ),
    "starcoder2": Traits(
        "Starcoder2ForCausalLM",
        lambda layers: {
            "hidden_act": "gelu_pytorch_tanh",
            "norm_epsilon": 1e-4,
            "use_bias": True,
            "sliding_window": WINDOW,
        },
        optional_bias=False,
        layer=dense_layers.starcoder2,
        norm_bias=True,
    ),
    "stablelm": Traits(
        "StableLmForCausalLM",
        lambda layers: {
            "layer_norm_eps": 1e-4,
            "use_qkv_bias": True,
            "qk_layernorm": True,
            "use_parallel_residual": False,
            "partial_rotary_factor": 0.5,
        },
        optional_bias=False,
        layer=dense_layers.stablelm,
        norm_bias=True,
    ),
    "gpt_neox": Traits(
        "GPTNeoXForCausalLM",
        lambda layers: {
            "layer_norm_eps": 1e-4,
            "hidden_act": "gelu",
            "rotary_pct": 0.5,
            "rotary_emb_base": 500.0,
            "attention_bias": True,
            "use_parallel_residual": True,
        },
        optional_bias=False,
        layer=dense_layers.gpt_neox,
        names=("gpt_neox.embed_in", "gpt_neox.layers.", "gpt_neox.final_layer_norm", "embed_out"),
        norm_bias=True,
    ),
    "cohere": Traits(
        "CohereForCausalLM",
        lambda layers: {"layer_norm_eps": 1e-4, "logit_scale": 0.3, "use_qk_norm": True},
        layer=dense_layers.cohere,
    ),
    "cohere2": Traits(
        "Cohere2ForCausalLM",
        lambda layers: {
            "layer_norm_eps": 1e-4,
            "logit_scale": 0.3,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
        },
        layer=dense_layers.cohere,
    ),
    "phi": Traits(
        "PhiForCausalLM",
        lambda layers: {
            "layer_norm_eps": 1e-4,
            "hidden_act": "gelu_new",
            "partial_rotary_factor": 0.5,
            "qk_layernorm": False,
        },
        optional_bias=False,
        layer=dense_layers.phi,
        names=("model.embed_tokens", "model.layers.", "model.final_layernorm", "lm_head"),
        norm_bias=True,
        head_bias=True,
    ),
    "falcon": Traits(
        "FalconForCausalLM",
        lambda layers: {
            "layer_norm_epsilon": 1e-4,
            "activation": "gelu",
            "ffn_hidden_size": 128,
            "alibi": False,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "multi_query": True,
            "parallel_attn": True,
            "bias": True,
        },
        optional_bias=False,
        layer=dense_layers.falcon,
        names=("transformer.word_embeddings", "transformer.h.", "transformer.ln_f", "lm_head"),
        norm_bias=True,
        without=("head_dim", "num_key_value_heads", "intermediate_size", "hidden_act", "rms_norm_eps"),
    ),
    "exaone4": Traits(
        "Exaone4ForCausalLM",
        lambda layers: {"sliding_window": WINDOW, "sliding_window_pattern": 2},
        optional_bias=False,
        norms=AFTER,
        head_norm="each",
    ),
    "nemotron": Traits(
        "NemotronForCausalLM",
        lambda layers: {
            "norm_eps": 1e-4,
            "hidden_act": "relu2",
            "mlp_bias": True,
            "attention_bias": True,
            "partial_rotary_factor": 0.5,
        },
        optional_bias=False,
        layer=dense_layers.nemotron,
        centred_norms=True,
        norm_bias=True,
    ),
    "olmo": Traits("OlmoForCausalLM", lambda layers: {"clip_qkv": 1.5}, norms=(), norm_weight=False),
    "arcee": Traits(
        "ArceeForCausalLM",
        lambda layers: {"hidden_act": "relu2", "mlp_bias": False},
        mlp=lambda config, layer, weights: dense_layers.two_matrices(
            config, weights, "mlp.up_proj", "mlp.down_proj", bias=False
        ),
    ),
    "helium": Traits("HeliumForCausalLM", lambda layers: {"mlp_bias": False}, optional_bias=False),
    "ernie4_5": Traits(
        "Ernie4_5ForCausalLM", lambda layers: {"use_bias": True}, optional_bias=False, layer=dense_layers.ernie4_5
    ),
    "ministral": Traits("MinistralForCausalLM", lambda layers: {"sliding_window": WINDOW}, optional_bias=False),
    "ministral3": Traits(
        "Ministral3ForCausalLM",
        lambda layers: {
            "sliding_window": None,
            "rope_scaling": {
                "type": "yarn",
                "rope_theta": 1000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 128,
                "max_position_embeddings": 2048,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale_all_dim": 1.0,
                "mscale": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        optional_bias=False,
    ),
    "glm": Traits(
        "GlmForCausalLM",
        lambda layers: {"attention_bias": True, "partial_rotary_factor": 0.5},
        optional_bias=False,
        layer=dense_layers.glm,
    ),
    "glm4": Traits(
        "Glm4ForCausalLM",
        lambda layers: {"attention_bias": True, "partial_rotary_factor": 0.5},
        optional_bias=False,
        layer=dense_layers.glm,
    ),
    "lfm2": Traits(
        "Lfm2ForCausalLM",
        lambda layers: {
            "norm_eps": 2e-5,
            "layer_types": ["full_attention" if layer % 2 else "conv" for layer in range(layers)],
            "conv_L_cache": 3,
            "conv_bias": False,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.7,
            "block_multiple_of": 32,
        },
        optional_bias=False,
        norms=("operator_norm", "ffn_norm"),
        head_norm="each",
        mlp=lfm2_mlp,
        mixer=lfm2_mixer,
        names=("model.embed_tokens", "model.layers.", "model.embedding_norm", "lm_head"),
    ),
    "qwen3_5_text": Traits(
        "Qwen3_5ForCausalLM",
        _hybrid_fields,
        centred_norms=True,
        head_norm="each",
        mixer=qwen3_5_mixer,
    ),
    "deepseek_v2": Traits(
        "DeepseekV2ForCausalLM",
        lambda layers: (
            latent_layers.SIZES
            | latent_layers.EXPERTS
            | {"q_lora_rank": None, "norm_topk_prob": False, "topk_method": "group_limited_greedy"}
        ),
        optional_bias=False,
        mixer=latent_layers.latent_attention,
        mlp=softmax_experts,
        without=("head_dim",),
    ),
    "deepseek_v3": Traits(
        "DeepseekV3ForCausalLM",
        lambda layers: (
            latent_layers.SIZES
            | latent_layers.EXPERTS
            | {"norm_topk_prob": True, "rope_interleave": True, "num_nextn_predict_layers": 0}
        ),
        optional_bias=False,
        mixer=latent_layers.latent_attention,
        mlp=routed_experts,
        without=("head_dim",),
    ),
    "glm4_moe_lite": Traits(
        "Glm4MoeLiteForCausalLM",
        lambda layers: (
            latent_layers.SIZES
            | latent_layers.EXPERTS
            | {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "rope_interleave": False}
        ),
        optional_bias=False,
        mixer=latent_layers.latent_attention,
        mlp=routed_experts,
        without=("head_dim",),
    ),
    "minicpm3": Traits(
        "MiniCPM3ForCausalLM",
        lambda layers: latent_layers.SIZES | {"scale_emb": 2.5, "scale_depth": 1.1, "dim_model_base": 48},
        mixer=latent_layers.latent_attention,
        optional_bias=False,
        without=("head_dim",),
    ),
    "qwen2_moe": Traits(
        "Qwen2MoeForCausalLM",
        lambda layers: QWEN_EXPERTS | {"use_sliding_window": False, "qkv_bias": True},
        optional_bias=False,
        qkv_bias=True,
        mlp=shared_experts,
    ),
    "olmoe": Traits(
        "OlmoeForCausalLM",
        lambda layers: {"num_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": False},
        head_norm="all",
        mlp=olmoe_experts,
    ),
    "granitemoe": Traits(
        "GraniteMoeForCausalLM",
        lambda layers: MULTIPLIED | {"num_local_experts": 6, "num_experts_per_tok": 3},
        mlp=granite_experts,
    ),
    "granitemoeshared": Traits(
        "GraniteMoeSharedForCausalLM",
        lambda layers: MULTIPLIED | {"num_local_experts": 6, "num_experts_per_tok": 3, "shared_intermediate_size": 80},
        mlp=granite_experts,
    ),
    "gpt_oss": Traits("GptOssForCausalLM", _gpt_oss_fields, layer=gpt_oss_layer),
    "qwen3_5_moe_text": Traits(
        "Qwen3_5MoeForCausalLM",
        lambda layers: QWEN_EXPERTS | _hybrid_fields(layers),
        centred_norms=True,
        head_norm="each",
        mixer=qwen3_5_mixer,
        mlp=shared_experts,
    ),
    "qwen3_next": Traits(
        "Qwen3NextForCausalLM",
        lambda layers: QWEN_EXPERTS | _hybrid_fields(layers) | {"norm_topk_prob": True},
        centred_norms=True,
        head_norm="each",
        mixer=qwen3_next_mixer,
        mlp=shared_experts,
    ),
    "glm4_moe": Traits(
        "Glm4MoeForCausalLM",
        lambda layers: {
            "attention_bias": True,
            "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "moe_intermediate_size": 48,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": True,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 1,
        },
        optional_bias=False,
        qkv_bias=True,
        head_norm="each",
        mlp=routed_experts,
        extra_layer=True,
    ),
    "ernie4_5_moe": Traits(
        "Ernie4_5_MoeForCausalLM",
        lambda layers: {
            "use_bias": False,
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_num_shared_experts": 2,
            "moe_intermediate_size": 48,
            "moe_layer_start_index": 1,
        },
        optional_bias=False,
        mlp=ernie_experts,
    ),
    "phimoe": Traits(
        "PhimoeForCausalLM",
        lambda layers: {
            "attention_bias": True,
            "lm_head_bias": True,
            "sliding_window": None,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "router_jitter_noise": 0.2,
        },
        optional_bias=False,
        layer=phi_layer,
        norm_bias=True,
        head_bias=True,
    ),
    "lfm2_moe": Traits(
        "Lfm2MoeForCausalLM",
        lambda layers: {
            "norm_eps": 2e-5,
            "layer_types": ["full_attention" if layer % 2 else "conv" for layer in range(layers)],
            "conv_L_cache": 3,
            "conv_bias": False,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "num_dense_layers": 1,
            "use_expert_bias": True,
            "routed_scaling_factor": 1.5,
            "norm_topk_prob": True,
        },
        optional_bias=False,
        norms=("operator_norm", "ffn_norm"),
        head_norm="each",
        mlp=lfm2_experts,
        mixer=lfm2_mixer,
        names=("model.embed_tokens", "model.layers.", "model.embedding_norm", "lm_head"),
    ),
    "granitemoehybrid": Traits(
        "GraniteMoeHybridForCausalLM",
        lambda layers: MULTIPLIED | mamba_layers.granite_fields(layers),
        mixer=granite_mixer,
        mlp=granite_mlp,
    ),
    "nemotron_h": Traits(
        "NemotronHForCausalLM",
        mamba_layers.nemotron_fields,
        layer=mamba_layers.nemotron_layer,
        names=("backbone.embeddings", "backbone.layers.", "backbone.norm_f", "lm_head"),
        without=("rms_norm_eps", "hidden_act"),
    ),
}
"""By config.json's `model_type`."""
MIXTURES = (
    *("qwen2_moe", "olmoe", "granitemoe", "granitemoeshared", "qwen3_5_moe_text", "qwen3_next"),
    *("glm4_moe", "ernie4_5_moe", "phimoe", "lfm2_moe"),
)
"""The families with a mixture of experts whose kernels other families have."""
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3")
"""The families with latent attention."""
DENSE = tuple(FAMILIES)[tuple(FAMILIES).index("starcoder2") : tuple(FAMILIES).index("lfm2")]
"""The families that `dense_layers` is for, and others with their parts."""
ARCHITECTURES: Mapping[str, str] = {name: traits.architecture for name, traits in FAMILIES.items()}


def family_fields(family: str, layers: int, *, attention_bias: bool) -> dict[str, Any]:
    """Fields of config.json beside those that all families have."""
    traits = FAMILIES[family]
    bias = {"attention_bias": attention_bias} if traits.optional_bias else {}
    return bias | dict(traits.fields(layers))


def random_weights(config: Mapping[str, Any], live: int, rng: np.random.Generator) -> Tensors:
    """Make random weights for a config.json. Tokens from `live` on get zeros, so they are never the most likely."""
    traits, hidden, vocab = FAMILIES[config["model_type"]], config["hidden_size"], config["vocab_size"]
    weights = RandomWeights(rng, centred=traits.centred_norms)
    mask = np.arange(vocab)[:, None] < live
    embedding, layers, norm, head = traits.names
    tensors: Tensors = {f"{embedding}.weight": weights.matrix(vocab, hidden, 0.5) * mask}
    if not config["tie_word_embeddings"]:
        tensors[f"{head}.weight"] = weights.matrix(vocab, hidden, 2.0) * mask
    for layer in range(config["num_hidden_layers"]):
        tensors |= {f"{layers}{layer}.{name}": tensor for name, tensor in _layer(traits, config, layer, weights)}
    if traits.beside is not None:
        tensors |= dict(traits.beside(config, weights))
    if traits.norm_weight:
        tensors[f"{norm}.weight"] = weights.norm(hidden)
    if traits.norm_bias:
        tensors[f"{norm}.bias"] = weights.bias(hidden)
    if traits.head_bias:
        tensors[f"{head}.bias"] = np.where(mask[:, 0], weights.bias(vocab), np.float32(-9))
    if traits.extra_layer and config["num_nextn_predict_layers"]:
        tensors[f"{layers}{config['num_hidden_layers']}.eh_proj.weight"] = weights.matrix(hidden, 2 * hidden, 1.0)
    if config.get("mtp_num_hidden_layers"):
        tensors |= _qwen_mtp(traits, config, weights)
    for layer in range(config["num_nextn_predict_layers"] if traits.mtp else 0):
        parts = _mtp_layer(traits, config, layer, weights)
        tensors |= {f"model.mtp_layers.{layer}.{name}": tensor for name, tensor in parts}
    return tensors


def _mtp_layer(traits: Traits, config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    """A layer behind a projection of a hidden state and an embedding, side by side, each with a norm."""
    hidden = config["hidden_size"]
    yield from _layer(traits, config, layer, weights)
    yield "input_proj.weight", weights.matrix(hidden, 2 * hidden, 1.0)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        yield f"{name}.weight", weights.norm(hidden)


def _qwen_mtp(traits: Traits, config: Mapping[str, Any], weights: RandomWeights) -> Tensors:
    """The head of Qwen3.5 and Qwen3-Next: like MiMo's, under other names, with a layer of the model that attends."""
    hidden, attends = config["hidden_size"], {**config, "layer_types": ["full_attention"]}
    tensors = {f"mtp.layers.0.{name}": tensor for name, tensor in _layer(traits, attends, 0, weights)}
    tensors["mtp.fc.weight"] = weights.matrix(hidden, 2 * hidden, 1.0)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        tensors[f"mtp.{name}.weight"] = weights.norm(hidden)
    return tensors


def _layer(traits: Traits, config: Mapping[str, Any], layer: int, weights: RandomWeights) -> NamedTensors:
    if traits.layer is not None:
        yield from traits.layer(config, layer, weights)
        return
    mixer = _attention(traits, config, weights) if traits.mixer is None else traits.mixer(config, layer, weights)
    parts = [*mixer, *traits.mlp(config, layer, weights)]
    if traits.fused:
        parts = list(_fused(dict(parts)))
    yield from parts
    yield from ((f"{name}.weight", weights.norm(config["hidden_size"])) for name in traits.norms)


def _attention(traits: Traits, config: Mapping[str, Any], weights: RandomWeights) -> NamedTensors:
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    for name, size, gain in (("q", queries, 2.0), ("k", keys, 2.0), ("v", keys, 1.0)):
        yield f"self_attn.{name}_proj.weight", weights.matrix(size, hidden, gain)
    yield "self_attn.o_proj.weight", weights.matrix(hidden, queries, 1.0)
    biased = "qkv" if traits.qkv_bias else "qkvo" if config.get("attention_bias") else ""
    for name in biased:
        yield f"self_attn.{name}_proj.bias", weights.bias({"q": queries, "k": keys, "v": keys, "o": hidden}[name])
    if traits.head_norm is not None:
        for name, size in (("q", queries), ("k", keys)):
            yield f"self_attn.{name}_norm.weight", weights.norm(size if traits.head_norm == "all" else head_dim, 2.0)


def _fused(parts: Tensors) -> NamedTensors:
    """Stack the projections of a layer."""
    qkv = [parts.pop(f"self_attn.{name}_proj.weight") for name in "qkv"]
    gate_up = [parts.pop(f"mlp.{name}_proj.weight") for name in ("gate", "up")]
    yield "self_attn.qkv_proj.weight", np.concatenate(qkv)
    yield "mlp.gate_up_proj.weight", np.concatenate(gate_up)
    yield from parts.items()
