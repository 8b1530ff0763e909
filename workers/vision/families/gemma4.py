"""The tower of Gemma 4, and the projection of patches of models without one (`gemma4_unified`)."""

import numpy as np

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.vision.config import Merger, VisionConfig
from workers.vision.families.family import Array, ParameterSource, Sources, VisionFamily, activation, ones, renamed
from workers.vision.preparation.gemma4 import Gemma4Preparer

MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
NORMS = {
    "norm1": "input_layernorm",
    "norm2": "pre_feedforward_layernorm",
    "post1": "post_attention_layernorm",
    "post2": "post_feedforward_layernorm",
}
LAYER_NORM_EPS = 1e-5
"""The epsilon of the norms around the embeddings of patches in models without a tower."""
RANGES = ("input_min", "input_max", "output_min", "output_max")


def _read(fields: Fields, model: ModelConfig) -> VisionConfig | None:
    vision = fields.section("vision_config")
    if vision is None:
        return None
    hidden, heads = vision.integer("hidden_size", 768), vision.integer("num_attention_heads", 12, most=MAX_PARTS)
    lanes, eps = vision.integer("head_dim", 64, most=1024), vision.number("rms_norm_eps", 1e-6)
    if lanes % 4:
        raise vision.error("head_dim", f"{lanes} lanes are no multiple of 4, which two axes of RoPE need")
    if vision.integer("num_key_value_heads", 12, most=MAX_PARTS) != heads:
        raise vision.error("num_key_value_heads", "is not num_attention_heads, which is not supported")
    if vision.flag("attention_bias", False):
        raise vision.error("attention_bias", "true is not supported")
    plan = vision.section("rope_parameters")
    if plan is not None and plan.get("rope_type", "axial") not in ("axial", "default"):
        raise plan.error("rope_type", f"{plan.get('rope_type')!r} is not supported, only axial")
    size = vision.integer("position_embedding_size", 10 * 1024)
    text = fields.section("text_config")
    sees = text is not None and text.get("use_bidirectional_attention") == "vision"
    return VisionConfig(
        family="gemma4",
        patch_values=3 * vision.integer("patch_size", 16, most=256) ** 2,
        layers=vision.integer("num_hidden_layers", 16, most=MAX_PARTS),
        hidden=hidden,
        heads=heads,
        head_dim=lanes,
        mlp=vision.integer("intermediate_size", 3072),
        norm="rms",
        eps=eps,
        activation=activation(vision, "hidden_activation", "gelu_pytorch_tanh"),
        gated=True,
        biases=False,
        scale=1.0,
        group=vision.integer("pooling_kernel_size", 3, most=16) ** 2,
        merger=Merger("mean", "rms", False, eps, 0, None, False, scale=hidden**0.5),
        output=model.hidden_size,
        qk_norm=True,
        value_norm=True,
        sandwich=True,
        rope_theta=100.0 if plan is None else plan.number("rope_theta", 100.0),
        columns_first=True,
        clipped=vision.flag("use_clipped_linears", False),
        table=(size, size),
        table_kind="axes",
        standardize=vision.flag("standardize", False),
        bidirectional="windowed" if sees else "none",
    )


def _sources(config: VisionConfig) -> Sources:
    rotated, swapped = lambda tensor: lanes_in_pairs(tensor, config.head_dim), lambda tensor: tensor[::-1]
    found: Sources = {
        "patch.weight": ParameterSource(("tower.patch_embedder.input_proj.weight",)),
        "positions.weight": ParameterSource(("tower.patch_embedder.position_embedding_table",), swapped),
        "merger.norm.weight": ones(config.hidden),
        "merger.down.weight": ParameterSource(("embedder.embedding_projection.weight",)),
    }
    if config.standardize:
        found |= {f"standard.{name}": ParameterSource((f"tower.std_{name}",)) for name in ("bias", "scale")}
    for layer in range(config.layers):
        own, stored = f"layers.{layer}", f"tower.encoder.layers.{layer}"
        found |= {f"{own}.{name}.weight": ParameterSource((f"{stored}.{each}.weight",)) for name, each in NORMS.items()}
        for name, each in MATRICES.items():
            change = rotated if name in ("q", "k") else None
            found[f"{own}.{name}.weight"] = ParameterSource((f"{stored}.{each}.linear.weight",), change)
            if config.clipped:
                ranges = tuple(f"{stored}.{each}.{end}" for end in RANGES)
                found[f"{own}.{name}.clip"] = ParameterSource(ranges, stacked_ranges)
        for name in ("q_norm", "k_norm"):
            found[f"{own}.{name}.weight"] = ParameterSource((f"{stored}.self_attn.{name}.weight",), rotated)
    return found


def lanes_in_pairs(tensor: Array, head_dim: int) -> Array:
    """Order the lanes of heads, [column, column, row, row] in quarters that are rotated in pairs, as the canonical
    rotation pairs them: the first quarter and the third, the second and the fourth."""
    quarters = tensor.reshape(-1, 4, head_dim // 4, *tensor.shape[1:])
    return quarters[:, [0, 2, 1, 3]].reshape(tensor.shape)


def stacked_ranges(*ranges: Array) -> Array:
    return np.array([each.astype(np.float32).reshape(()) for each in ranges], np.float32)


def _read_unified(fields: Fields, model: ModelConfig) -> VisionConfig | None:
    """Read a description of no layers: patches of a token's size, which are normed, projected and placed."""
    vision, text = fields.section("vision_config"), fields.section("text_config")
    if vision is None:
        return None
    hidden, size = vision.integer("mm_embed_dim", 3840), vision.integer("mm_posemb_size", 1120)
    if vision.integer("output_proj_dims", hidden) != hidden:
        raise vision.error("output_proj_dims", f"is not mm_embed_dim, {hidden}, which is not supported")
    side = vision.integer("patch_size", 16, most=256) * vision.integer("pooling_kernel_size", 3, most=16)
    sees = text is None or text.get("use_bidirectional_attention", "vision") == "vision"
    return VisionConfig(
        family="gemma4_unified",
        patch_values=3 * side**2,
        layers=0,
        hidden=hidden,
        heads=1,
        head_dim=2,
        mlp=1,
        norm="layer",
        eps=LAYER_NORM_EPS,
        activation="gelu_tanh",
        gated=False,
        biases=False,
        patch_bias=True,
        values_norm="layer",
        patch_norm="layer",
        placed_norm="layer",
        scale=1.0,
        group=1,
        merger=Merger("concat", "rms", False, vision.number("rms_norm_eps", 1e-6), 0, None, False),
        output=model.hidden_size,
        table=(size, size),
        table_kind="axes",
        bidirectional="windowed" if sees else "none",
    )


def _sources_unified(config: VisionConfig) -> Sources:
    names = {"values_norm": "patch_ln1", "patch": "patch_dense", "patch_norm": "patch_ln2", "placed_norm": "pos_norm"}
    return renamed({own: f"embedder.{stored}" for own, stored in names.items()}) | {
        "positions.weight": ParameterSource(("embedder.pos_embedding",), lambda table: table.swapaxes(0, 1)[::-1]),
        "merger.norm.weight": ones(config.hidden),
        "merger.down.weight": ParameterSource(("embedder.embedding_projection.weight",)),
    }


PREFIXES = {
    f"{outer}{stored}": own
    for outer in ("model.", "")
    for stored, own in (("vision_tower.", "tower."), ("embed_vision.", "embedder."))
}
UNIFIED_PREFIXES = {
    f"{outer}{stored}.": "embedder."
    for stored in ("vision_embedder", "embed_vision.multimodal_embedder", "embed_vision")
    for outer in ("model.", "")
}
"""As published, and as transformers has them in memory."""
GEMMA4_UNIFIED = VisionFamily(UNIFIED_PREFIXES, _read_unified, _sources_unified, Gemma4Preparer.unified)
GEMMA4 = VisionFamily(PREFIXES, _read, _sources, Gemma4Preparer.of)
