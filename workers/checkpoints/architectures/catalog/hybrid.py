"""Hybrid families: most of their layers mix rows by a recurrent network, the others by attention."""

from collections.abc import Mapping

from workers.checkpoints.architectures.family import Family
from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.parts import QWEN_MTP, Names, Norms


def attention_where_listed(fields: Fields, layers: int) -> list[str]:
    """LFM2's rule: layers attend that `full_attn_idxs` lists, or all."""
    listed = fields.get("full_attn_idxs", list(range(layers)))
    if not isinstance(listed, list) or any(type(each) is not int or not 0 <= each < layers for each in listed):
        raise fields.error("full_attn_idxs", f"is not a list of layers below {layers}")
    return ["full_attention" if layer in listed else "conv" for layer in range(layers)]


def attention_every_few(fields: Fields, layers: int) -> list[str]:
    """Qwen's rule: every `full_attention_interval`-th layer attends."""
    step = fields.integer("full_attention_interval", 4)
    return ["linear_attention" if (layer + 1) % step else "full_attention" for layer in range(layers)]


def adjusted_ffn(fields: Fields) -> int:
    """LFM2's width of the MLP: two thirds of the stated one, times a factor, in whole multiples, unless that is
    switched off."""
    stated = fields.integer("intermediate_size")
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return stated
    multiple = fields.integer("block_multiple_of", 256)
    scaled = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * stated / 3))
    return -(-scaled // multiple) * multiple


HYBRIDS: Mapping[str, Family] = {
    "lfm2": Family(
        "Lfm2ForCausalLM",
        norms=Norms(before_attention="operator_norm", before_mlp="ffn_norm"),
        head_norm="each",
        names=Names(
            gate_up=("feed_forward.w1", "feed_forward.w3"),
            down="feed_forward.w2",
            o="self_attn.out_proj",
            head_norms=("self_attn.q_layernorm", "self_attn.k_layernorm"),
            norm="model.embedding_norm",
        ),
        mixers={"full_attention": "attention", "conv": "convolution"},
        mixer_rule=attention_where_listed,
        read_ffn=adjusted_ffn,
        aliases={
            "intermediate_size": "block_ff_dim",
            "rms_norm_eps": "norm_eps",
            "tie_word_embeddings": "tie_embedding",
        },
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "num_key_value_heads": 8,
            "max_position_embeddings": 128000,
        },
    ),
    "qwen3_5_text": Family(
        "Qwen3_5ForCausalLM",
        biases=None,
        norm_offset=1.0,
        head_norm="each",
        mixers={"full_attention": "attention", "linear_attention": "gated_delta"},
        mixer_rule=attention_every_few,
        attention_gate=True,
        partial_rope=True,
        rope_sections=True,
        other_tensors=("mtp.",),
        mtp=QWEN_MTP,
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 256,
            "partial_rotary_factor": 0.25,
            "max_position_embeddings": 32768,
        },
    ),
}
"""The families by `model_type` of config.json."""
