"""Families without experts that have parts which Llama lacks, such as biases of norms or parallel blocks."""

from collections.abc import Mapping

from tests.families.plain_families import AFTER
from tests.families.traits import WINDOW, Traits
from tests.reference.layers import dense_layers

DENSE_FAMILIES: Mapping[str, Traits] = {
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
}
"""By config.json's `model_type`."""
