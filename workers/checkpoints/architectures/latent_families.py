"""Families with multi-head latent attention."""

from collections.abc import Mapping

from workers.checkpoints.architectures.family import Family

LATENT: Mapping[str, Family] = {
    "minicpm3": Family(
        "MiniCPM3ForCausalLM",
        latent=True,
        reads=frozenset({"dim_model_base", "embedding_multiplier", "scale_depth", "scale_emb"}),
        field_names={"embedding_multiplier": "scale_emb"},
        defaults={
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 32768,
            "num_attention_heads": 40,
            "kv_lora_rank": 256,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 256,
        },
    ),
}
"""The families by `model_type` of config.json."""
