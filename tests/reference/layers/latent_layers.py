"""Random weights of layers with latent attention, as transformers' DeepSeek, GLM and MiniCPM models have them."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.families import RandomWeights

SIZES: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 32,
    "v_head_dim": 48,
}
"""All sizes differ, but for two that cannot be taken for each other."""
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 48,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}


def latent_attention(
    config: Mapping[str, Any], layer: int, weights: "RandomWeights"
) -> Iterator[tuple[str, NDArray[Any]]]:
    """The projections of queries, with or without a latent of their own, of keys and values, and of the output."""
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    passed, rotated, values = (config[name] for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    low, queries = config["q_lora_rank"], heads * (passed + rotated)
    if low is None:
        yield "self_attn.q_proj.weight", weights.matrix(queries, hidden, 2.0)
    else:
        yield "self_attn.q_a_proj.weight", weights.matrix(low, hidden, 1.0)
        yield "self_attn.q_a_layernorm.weight", weights.norm(low)
        yield "self_attn.q_b_proj.weight", weights.matrix(queries, low, 2.0)
    yield "self_attn.kv_a_proj_with_mqa.weight", weights.matrix(rank + rotated, hidden, 2.0)
    yield "self_attn.kv_a_layernorm.weight", weights.norm(rank)
    yield "self_attn.kv_b_proj.weight", weights.matrix(heads * (passed + values), rank, 1.5)
    yield "self_attn.o_proj.weight", weights.matrix(hidden, heads * values, 1.0)
