"""Dense families that have LayerNorm, MLPs without gates, parallel layers or interleaved rotations, and others."""

from collections.abc import Mapping
from dataclasses import replace

from workers.checkpoints.architectures.catalog.moe import layers_behind
from workers.checkpoints.architectures.family import AFTER, BEFORE, Family, all_layers, but_every
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.parts import HeadNorm, Names, Norms

COHERE_DEFAULTS = {
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
}
GLM_DEFAULTS = {
    "rms_norm_eps": 1.5625e-7,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "max_position_embeddings": 131072,
}
MINISTRAL3_POSITIONS = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LAYER_NORM_EPS = {"rms_norm_eps": "layer_norm_eps"}
ONE_NORM = Norms(before_attention="input_layernorm")


def vary_glm4(family: Family, fields: Fields) -> Family:
    """GLM-OCR has a layer for multi-token prediction behind the last one."""
    return replace(family, other_tensors=layers_behind(fields))


def vary_gpt_neox(family: Family, fields: Fields) -> Family:
    heads = fields.integer("num_attention_heads")
    return replace(family, kv_heads=heads, parallel=fields.flag("use_parallel_residual", True))


def vary_stablelm(family: Family, fields: Fields) -> Family:
    """Parallel layers have one norm; heads may have norms."""
    parallel = fields.flag("use_parallel_residual", False)
    head_norm: HeadNorm | None = "own" if fields.flag("qk_layernorm", False) else None
    if head_norm is not None:
        fields.integer("num_attention_heads", most=MAX_PARTS)  # the norm of each has a name
    return replace(family, parallel=parallel, norms=ONE_NORM if parallel else BEFORE, head_norm=head_norm)


def vary_cohere(family: Family, fields: Fields) -> Family:
    return replace(family, head_norm="own" if fields.flag("use_qk_norm", False) else None)


def vary_cohere2(family: Family, fields: Fields) -> Family:
    if fields.get("sliding_window") is None:
        raise fields.error("sliding_window", "is missing: layers with positions are those with a window")
    return family


def vary_ministral3(family: Family, fields: Fields) -> Family:
    """Positions have a plan that transformers takes where config.json has none."""
    if fields.get("rope_parameters") is not None or fields.get("rope_scaling") is not None:
        return family
    return replace(family, defaults={**family.defaults, "rope_parameters": MINISTRAL3_POSITIONS})


def vary_falcon(family: Family, fields: Fields) -> Family:
    """Falcon 7B has one KV head and one norm; the newer architecture has groups of heads, and mostly two norms."""
    newer, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    if newer:
        two = fields.integer("num_ln_in_parallel_attn", 2) == 2
        norms = Norms(before_attention="ln_attn", before_mlp="ln_mlp") if two else ONE_NORM
        names = {**family.field_names, "num_key_value_heads": "num_kv_heads"}
        return replace(family, parallel=True, norms=norms, qkv_layout="kv_heads", field_names=names)
    family = replace(family, parallel=parallel, norms=ONE_NORM if parallel else BEFORE)
    if fields.flag("multi_query", True):
        return replace(family, kv_heads=1)
    return replace(family, kv_heads=fields.integer("num_attention_heads"), qkv_layout="heads")


DENSE: Mapping[str, Family] = {
    "starcoder2": Family(
        "Starcoder2ForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        names=Names(gate_up=("mlp.c_fc",), down="mlp.c_proj"),
        biases=None,
        mlp_biases=None,
        gated=False,
        activation="gelu_pytorch_tanh",
        windowed=all_layers,
        reads=frozenset({"mlp_bias"}),
        field_names={"rms_norm_eps": "norm_epsilon", "attention_bias": "use_bias", "mlp_bias": "use_bias"},
        defaults={"norm_epsilon": 1e-5, "use_bias": True, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "stablelm": Family(
        "StableLmForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        names=Names(head_norms=("self_attn.q_layernorm.norms.{}", "self_attn.k_layernorm.norms.{}")),
        biases=None,
        output_bias=False,
        partial_rope=True,
        variant=vary_stablelm,
        reads=frozenset({"qk_layernorm"}),
        field_names=LAYER_NORM_EPS | {"attention_bias": "use_qkv_bias"},
        defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25},
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        names=Names(
            qkv=("attention.query_key_value",),
            o="attention.dense",
            gate_up=("mlp.dense_h_to_4h",),
            down="mlp.dense_4h_to_h",
            derived=("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"),
            embedding="gpt_neox.embed_in",
            layers="gpt_neox.layers.",
            norm="gpt_neox.final_layer_norm",
            head="embed_out",
        ),
        biases=None,
        mlp_biases=True,
        gated=False,
        activation="gelu",
        any_activation=True,
        partial_rope=True,
        qkv_layout="heads",
        variant=vary_gpt_neox,
        reads=frozenset({"rotary_pct"}),
        field_names=LAYER_NORM_EPS | {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        defaults={
            "layer_norm_eps": 1e-5,
            "rotary_pct": 0.25,
            "attention_bias": True,
        },
    ),
    "cohere": Family(
        "CohereForCausalLM",
        norm_kind="layer",
        norms=ONE_NORM,
        parallel=True,
        biases=None,
        interleaved_rope=True,
        variant=vary_cohere,
        reads=frozenset({"logit_scale", "use_qk_norm"}),
        field_names=LAYER_NORM_EPS,
        defaults=COHERE_DEFAULTS,
    ),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        norm_kind="layer",
        norms=ONE_NORM,
        parallel=True,
        biases=None,
        interleaved_rope=True,
        windowed=but_every(4),
        rotates_windowed=True,
        variant=vary_cohere2,
        reads=frozenset({"logit_scale"}),
        field_names=LAYER_NORM_EPS,
        defaults=COHERE_DEFAULTS | {"sliding_window": 4096, "rope_theta": 10000.0},
    ),
    "phi": Family(
        "PhiForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        norms=ONE_NORM,
        parallel=True,
        names=Names(gate_up=("mlp.fc1",), down="mlp.fc2", o="self_attn.dense", norm="model.final_layernorm"),
        biases=True,
        output_bias=True,
        mlp_biases=True,
        head_bias=True,
        gated=False,
        activation="gelu_new",
        partial_rope=True,
        field_names=LAYER_NORM_EPS,
        defaults={"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    ),
    "falcon": Family(
        "FalconForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        names=Names(
            qkv=("self_attention.query_key_value",),
            o="self_attention.dense",
            gate_up=("mlp.dense_h_to_4h",),
            down="mlp.dense_4h_to_h",
            embedding="transformer.word_embeddings",
            layers="transformer.h.",
            norm="transformer.ln_f",
            derived=("self_attention.rotary_emb.inv_freq",),
        ),
        biases=None,
        mlp_biases=None,
        gated=False,
        activation="gelu",
        ffn_factor=4,
        variant=vary_falcon,
        reads=frozenset({"mlp_bias"}),
        field_names={
            "rms_norm_eps": "layer_norm_epsilon",
            "attention_bias": "bias",
            "mlp_bias": "bias",
            "hidden_act": "activation",
            "intermediate_size": "ffn_hidden_size",
        },
        defaults={"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    ),
    "exaone4": Family(
        "Exaone4ForCausalLM",
        norms=AFTER,
        head_norm="each",
        windowed=but_every(4),
        rotates_windowed=True,
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "num_key_value_heads": 32},
    ),
    "nemotron": Family(
        "NemotronForCausalLM",
        norm_kind="layer",
        norm_biases=True,
        norm_offset=1.0,
        names=Names(gate_up=("mlp.up_proj",)),
        biases=None,
        mlp_biases=None,
        gated=False,
        activation="relu2",
        partial_rope=True,
        reads=frozenset({"mlp_bias"}),
        field_names={"rms_norm_eps": "norm_eps"},
        defaults={"norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    ),
    "olmo": Family(
        "OlmoForCausalLM",
        norm_kind="layer",
        norm_weights=False,
        biases=None,
        reads=frozenset({"clip_qkv"}),
        defaults={"rms_norm_eps": 1e-5},
    ),
    "arcee": Family(
        "ArceeForCausalLM",
        names=Names(gate_up=("mlp.up_proj",)),
        biases=None,
        mlp_biases=None,
        gated=False,
        activation="relu2",
        reads=frozenset({"mlp_bias"}),
        defaults={"rms_norm_eps": 1e-5},
    ),
    "helium": Family(
        "HeliumForCausalLM",
        biases=None,
        output_bias=False,
        mlp_biases=None,
        interleaved_rope=True,
        reads=frozenset({"mlp_bias"}),
        defaults={"rms_norm_eps": 1e-8, "rope_theta": 100000.0, "head_dim": 128, "num_key_value_heads": 20},
    ),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM",
        earlier_architecture="Ernie4_5_ForCausalLM",
        biases=None,
        mlp_biases=None,
        interleaved_rope=True,
        reads=frozenset({"mlp_bias"}),
        field_names={"attention_bias": "use_bias", "mlp_bias": "use_bias"},
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "head_dim": 128,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    "ministral": Family(
        "MinistralForCausalLM", windowed=all_layers, defaults={"sliding_window": 4096, "num_key_value_heads": 8}
    ),
    "ministral3": Family(
        "Ministral3ForCausalLM",
        windowed=all_layers,
        grows_queries=True,
        variant=vary_ministral3,
        defaults={"rms_norm_eps": 1e-5, "head_dim": 128, "num_key_value_heads": 8, "max_position_embeddings": 262144},
    ),
    "glm": Family(
        "GlmForCausalLM",
        names=Names(gate_up=("mlp.gate_up_proj",)),
        biases=None,
        output_bias=False,
        interleaved_rope=True,
        partial_rope=True,
        defaults=GLM_DEFAULTS,
    ),
    "glm4": Family(
        "Glm4ForCausalLM",
        norms=Norms(
            before_attention="input_layernorm",
            after_attention="post_self_attn_layernorm",
            before_mlp="post_attention_layernorm",
            after_mlp="post_mlp_layernorm",
        ),
        names=Names(gate_up=("mlp.gate_up_proj",)),
        biases=None,
        output_bias=False,
        interleaved_rope=True,
        partial_rope=True,
        variant=vary_glm4,
        defaults=GLM_DEFAULTS,
    ),
}
"""Further families by `model_type` of config.json."""
