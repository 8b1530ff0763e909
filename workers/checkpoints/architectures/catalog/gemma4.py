"""Gemma 4's language models: layers with two sizes of heads, shared keys and values, embeddings of each layer, and
experts beside the MLP (transformers, `models/gemma4` and `models/gemma4_unified`)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workers.checkpoints.architectures.family import AROUND, Family
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.parts import ExpertNames, KvShape, LayerConfig, Names, PerLayerEmbedding
from workers.checkpoints.architectures.rope import Rope
from workers.checkpoints.architectures.rope_fields import read_ropes

PERIOD = 6
"""Every sixth layer has no attention window, unless config.json lists them."""
LOCAL_ROPE = "rope_local_base_freq"
SHAPE = ("head_dim", "num_key_value_heads")
"""Fields that `per_layer_config` may state of a layer."""


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
    both = shapes(fields, plan)
    if both[0] != both[1]:
        plan = tuple(layer if layer.window is not None else replace(layer, kv_shape=1) for layer in plan)
    plan = _shared(fields, _with_keys_as_values(fields, plan))
    wide, _ = read_ropes(fields, both[1].key_width, local=LOCAL_ROPE, partial=False)
    return {
        "plan": plan,
        "kv_shapes": both if both[0] != both[1] else (),
        "ropes": (wide, ropes[1]),
        "attention_scale": 1.0,
        "value_norm": True,
        "layer_scalars": True,
        "per_layer": _per_layer(fields),
        "experts_beside_mlp": fields.flag("enable_moe_block", False),
    }


def shapes(fields: Fields, plan: tuple[LayerConfig, ...]) -> tuple[KvShape, KvShape]:
    """Read the shapes of keys and values in layers with a window, and in those without one: as published, or as
    transformers saves them, in `per_layer_config`, which must state the same for all of the latter."""
    windowed = KvShape(fields.integer("num_key_value_heads"), *[fields.integer("head_dim")] * 2)
    each = fields.section("per_layer_config")
    if each is not None:
        return windowed, _stated_shape(fields, each, plan, windowed)
    lanes, heads = fields.integer("global_head_dim", 512), windowed.heads
    if fields.flag("attention_k_eq_v", False) and fields.get("num_global_key_value_heads") is not None:
        heads = fields.integer("num_global_key_value_heads")
        _check_heads(fields, "num_global_key_value_heads", heads)
    if lanes % 2:
        raise fields.error("global_head_dim", f"{lanes} is odd; rotary positions need pairs")
    return windowed, KvShape(heads, lanes, lanes)


def _stated_shape(fields: Fields, each: Fields, plan: tuple[LayerConfig, ...], windowed: KvShape) -> KvShape:
    """Read the shape in layers without a window from the section with the layers that differ."""
    full = [number for number, layer in enumerate(plan) if layer.window is None]
    sections: dict[int, Fields] = {}
    for name in each.values:
        if not (name.isascii() and name.isdigit()):
            raise each.error(name, "is not the number of a layer")
        stated, number = each.section(name) or Fields(fields.file, {}), int(name)  # transformers writes 5 as "05"
        for field in stated.values:
            if field not in SHAPE or number not in full:
                raise stated.error(field, f"is not supported, only {' and '.join(SHAPE)} of layers without a window")
        if number in sections:
            raise each.error(name, f"states layer {number} once more")
        sections[number] = stated
    stated_full = [sections.get(number, Fields(fields.file, {})) for number in full]
    found = {(one.integer(SHAPE[0], windowed.key_width), one.integer(SHAPE[1], windowed.heads)) for one in stated_full}
    lanes, heads = found.pop()
    if found or lanes % 2:
        problem = "is not the same for all layers without a window" if found else f"has an odd head_dim, {lanes}"
        raise fields.error("per_layer_config", problem)
    _check_heads(fields, "per_layer_config", heads)
    return KvShape(heads, lanes, lanes)


def _check_heads(fields: Fields, name: str, heads: int) -> None:
    queries = fields.integer("num_attention_heads")
    if queries % heads:
        raise fields.error(name, f"{heads} does not divide num_attention_heads, {queries}")


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
    pad = fields.get("pad_token_id", 0)
    if not isinstance(pad, int) or isinstance(pad, bool) or not 0 <= pad < own:
        raise fields.error("pad_token_id", f"{pad!r} is no token of {own}")
    return PerLayerEmbedding(width, own, width**0.5, pad)


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
