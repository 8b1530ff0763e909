"""Gemma 4's language models: layers with two sizes of heads, shared keys and values, embeddings of each layer, and
experts beside the MLP (transformers, `models/gemma4` and `models/gemma4_unified`)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workers.checkpoints.architectures.family import AROUND, Family
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.parts import ExpertNames, LayerConfig, Names, PerLayerEmbedding
from workers.checkpoints.architectures.rope import Rope
from workers.checkpoints.architectures.rope_fields import read_ropes

PERIOD = 6
"""Every sixth layer has no attention window, unless config.json lists them."""
LOCAL_ROPE = "rope_local_base_freq"
SHAPE = ("head_dim", "num_key_value_heads")
"""What `per_layer_config` may state of a layer."""


def windowed(fields: Fields, layers: int) -> tuple[bool, ...]:
    return tuple((layer + 1) % PERIOD != 0 for layer in range(layers))


def vary(family: Family, fields: Fields) -> Family:
    """The mixture of experts is switched on by `enable_moe_block`."""
    if fields.get("use_bidirectional_attention") not in (None, "vision"):
        problem = (
            f"{fields.get('use_bidirectional_attention')!r} is not supported, only 'vision', which text is without"
        )
        raise fields.error("use_bidirectional_attention", problem)
    return replace(family, experts=fields.flag("enable_moe_block", False))


def further(fields: Fields, plan: tuple[LayerConfig, ...], ropes: tuple[Rope, ...]) -> Mapping[str, Any]:
    """Read what only Gemma 4 states. `plan` has the attention windows, `ropes` those of heads of `head_dim` lanes."""
    plan = (*plan[:-1], replace(plan[-1], window=None, rope=0))  # the last layer never has a window
    plan = _shared(fields, _with_keys_as_values(fields, plan))
    lanes, _ = global_heads(fields, plan)
    wide, _ = read_ropes(fields, lanes, local=LOCAL_ROPE, partial=False)
    return {
        "plan": plan,
        "ropes": (wide, ropes[1]),
        "attention_scale": 1.0,
        "value_norm": True,
        "layer_scalars": True,
        "per_layer": _per_layer(fields),
        "experts_beside_mlp": fields.flag("enable_moe_block", False),
    }


def global_heads(fields: Fields, plan: tuple[LayerConfig, ...]) -> tuple[int, int]:
    """Read the lanes and the number of KV heads of layers without a window, as published or as transformers saves
    them: in `per_layer_config`, which then must state the same for all of them, and nothing else."""
    kv_heads = fields.integer("num_key_value_heads")
    each = fields.section("per_layer_config")
    if each is None:
        few = fields.flag("attention_k_eq_v", False) and fields.get("num_global_key_value_heads") is not None
        lanes = fields.integer("global_head_dim", 512)
        return _even(fields, "global_head_dim", lanes), fields.integer(
            "num_global_key_value_heads"
        ) if few else kv_heads
    found = set()
    for number, layer in enumerate(plan):
        stated = each.section(str(number))
        if stated is None:
            continue
        for name in stated.values:
            if name not in SHAPE or layer.window is not None:
                raise stated.error(
                    name, "is not supported: layers with a window are alike, and others state " + " and ".join(SHAPE)
                )
        found.add((stated.integer("head_dim", fields.integer("head_dim")), stated.integer(SHAPE[1], kv_heads)))
    if len(found) != 1 or len(each.values) != sum(layer.window is None for layer in plan):
        raise fields.error(
            "per_layer_config", "does not state the same for all layers without a window, and for no other"
        )
    lanes, heads = found.pop()
    return _even(fields, "per_layer_config", lanes), heads


def _even(fields: Fields, name: str, lanes: int) -> int:
    if lanes % 2:
        raise fields.error(name, f"{lanes} is odd; rotary positions need pairs")
    return lanes


def _with_keys_as_values(fields: Fields, plan: tuple[LayerConfig, ...]) -> tuple[LayerConfig, ...]:
    """Let layers without a window take keys for values if `attention_k_eq_v` is true."""
    if not fields.flag("attention_k_eq_v", False):
        return plan
    return tuple(layer if layer.window is not None else replace(layer, keys_as_values=True) for layer in plan)


def _shared(fields: Fields, plan: tuple[LayerConfig, ...]) -> tuple[LayerConfig, ...]:
    """Let the last `num_kv_shared_layers` layers read the keys and values of the last one before them of their kind."""
    if fields.get("num_kv_shared_layers", 0) == 0:
        return plan
    count = fields.integer("num_kv_shared_layers", most=MAX_PARTS)
    wide = fields.flag("use_double_wide_mlp", False)
    own, out = plan[: max(0, len(plan) - count)], []
    for layer in plan[len(own) :]:
        like = [number for number, each in enumerate(own) if each.window == layer.window]
        if not like:
            problem = f"{count} leaves no layer of a kind that could give the others its keys and values"
            raise fields.error("num_kv_shared_layers", problem)
        out.append(replace(layer, kv_source=like[-1], ffn_multiple=2 if wide else 1))
    return (*own, *out)


def _per_layer(fields: Fields) -> PerLayerEmbedding | None:
    """Read the embeddings of each layer."""
    if fields.get("hidden_size_per_layer_input", 0) == 0:
        return None
    vocab, own = fields.integer("vocab_size"), fields.integer("vocab_size_per_layer_input")
    if own < vocab:
        raise fields.error("vocab_size_per_layer_input", f"{own} is less than vocab_size, {vocab}")
    width = fields.integer("hidden_size_per_layer_input")
    return PerLayerEmbedding(width, own, width**0.5)


GEMMA4 = Family(
    "Gemma4ForCausalLM",
    norms=AROUND,
    head_norm="each",
    names=Names(
        experts=ExpertNames("router.proj", "experts.{}.gate_proj", "experts.{}.up_proj", "experts.{}.down_proj"),
    ),
    biases=None,
    activation="gelu_pytorch_tanh",
    scaled_embedding=True,
    windowed=windowed,
    local_rope=LOCAL_ROPE,
    expert_ffn="moe_intermediate_size",
    field_names={"num_experts_per_tok": "top_k_experts"},
    reads=frozenset({"final_logit_softcapping", "num_experts", "use_bidirectional_attention"}),
    variant=vary,
    further=further,
    defaults={
        "vocab_size": 262144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "sliding_window": 512,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
    },
)
UNIFIED = replace(
    GEMMA4,
    architecture="Gemma4UnifiedForCausalLM",
    defaults={
        **GEMMA4.defaults,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
        "use_bidirectional_attention": "vision",
    },
)
"""The models without encoders of images and sounds."""
GEMMAS: Mapping[str, Family] = {"gemma4_text": GEMMA4, "gemma4_unified_text": UNIFIED}
"""By `model_type`."""
