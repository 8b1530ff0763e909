"""The towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5; the last two with experts as well."""

import math
from dataclasses import replace

from workers.checkpoints.architectures.config import ModelConfig
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.vision.config import Merger, VisionConfig
from workers.vision.families.family import (
    CHANNELS,
    ParameterSource,
    Sources,
    VisionFamily,
    activation,
    check_channels,
    flat_kernel,
    head_size,
    renamed,
    required,
    square_side,
    third,
    zeros,
)
from workers.vision.preparation.qwen import QwenPreparer

EPS = 1e-6
"""The epsilon of all norms."""
THETA = 10000.0
DEEP_STACKS = ("qwen3_vl", "qwen3_vl_moe")
SECTIONS = {
    "qwen3_vl": (24, 20, 20),
    "qwen3_vl_moe": (24, 20, 20),
    "qwen3_5": (11, 11, 10),
    "qwen3_5_moe": (11, 11, 10),
}
"""The sections of M-RoPE of families whose config.json may leave them out."""


def _read_qwen3(fields: Fields, model: ModelConfig) -> VisionConfig:
    """Read the tower of Qwen3-VL, or that of Qwen3.5, which has no deep stack."""
    vision, family = required(fields, "vision_config"), str(fields.get("model_type"))
    tower = read_tower(fields, model, family, "gelu_pytorch_tanh", patch=16)
    side = math.isqrt(vision.integer("num_position_embeddings", 2304))
    taps = _layers(vision, "deepstack_visual_indexes", tower.layers) if family in DEEP_STACKS else ()
    return replace(
        tower,
        table=(side, side),
        table_kind="interpolated",
        taps=taps,
        tap_merger=replace(tower.merger, norm_each=False) if taps else None,
        mrope_interleaved=True,
    )


def _read_qwen2_5(fields: Fields, model: ModelConfig) -> VisionConfig:
    tower = read_tower(fields, model, "qwen2_5_vl", "silu")
    full = _layers(required(fields, "vision_config"), "fullatt_block_indexes", tower.layers)
    merger = replace(tower.merger, norm="rms")
    return replace(tower, norm="rms", gated=True, merger=merger, full_layers=frozenset(full))


def _read_qwen2(fields: Fields, model: ModelConfig) -> VisionConfig:
    return read_tower(fields, model, "qwen2_vl", "quick_gelu", width="embed_dim", output="hidden_size")


def read_tower(
    fields: Fields,
    model: ModelConfig,
    family: str,
    act: str,
    *,
    patch: int = 14,
    width: str = "hidden_size",
    output: str = "out_hidden_size",
    sections: tuple[int, ...] | None = None,
) -> VisionConfig:
    """Read what the towers have in common, with LayerNorm and plain MLPs. `act` and `patch` are the defaults of the
    activation and of the side of a patch; `width` and `output` name the hidden sizes of the tower and of its tokens;
    `sections` are those of M-RoPE if they are read.

    The MLP is as wide as `intermediate_size` says, or `mlp_ratio` where the width is `embed_dim`.
    """
    vision = required(fields, "vision_config")
    hidden, heads = vision.integer(width), vision.integer("num_heads", most=MAX_PARTS)
    group = vision.integer("spatial_merge_size", 2, most=16) ** 2
    lanes = head_size(vision, "num_heads", hidden, heads)
    by_ratio = width == "embed_dim"
    return VisionConfig(
        family=family,
        patch_values=_patch_values(vision, patch),
        layers=_depth(vision),
        hidden=hidden,
        heads=heads,
        head_dim=lanes,
        mlp=int(hidden * vision.number("mlp_ratio", 4)) if by_ratio else vision.integer("intermediate_size"),
        norm="layer",
        eps=EPS,
        activation=activation(vision, "hidden_act", act),
        gated=False,
        biases=True,
        scale=lanes**-0.5,
        group=group,
        merger=Merger("concat", "layer", True, EPS, hidden * group, "gelu", True),
        output=_output(vision, output, model),
        rope_theta=THETA,
        mrope=mrope_sections(fields) if sections is None else sections,
    )


def _depth(vision: Fields) -> int:
    return vision.integer("depth", most=MAX_PARTS)


def _patch_values(vision: Fields, patch: int) -> int:
    """Numbers of a patch of some frames; an image is repeated in all of them."""
    check_channels(vision, "in_channels", "in_chans")
    frames = vision.integer("temporal_patch_size", 2, most=16)
    return CHANNELS * frames * square_side(vision, "patch_size", patch, 256) ** 2


def _output(vision: Fields, name: str, model: ModelConfig) -> int:
    if (output := vision.integer(name)) != model.hidden_size:
        raise vision.error(name, f"is {output}, but the language model has a hidden size of {model.hidden_size}")
    return output


def _layers(vision: Fields, name: str, depth: int) -> tuple[int, ...]:
    """Read a list of layers in rising order."""
    value = vision.get(name, [])
    valid = isinstance(value, list) and all(isinstance(each, int) and 0 <= each < depth for each in value)
    if not valid or value != sorted(set(value)):
        raise vision.error(name, f"is not a list of layers from 0 to {depth - 1}, in rising order")
    return tuple(value)


def mrope_sections(fields: Fields, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Read the angles of the language model that belong to time, row and column. `default` are those of a family whose
    config.json may leave them out."""
    text = fields.section("text_config") or fields
    plan = text.section("rope_parameters") or text.section("rope_scaling")
    value = None if plan is None else plan.get("mrope_section")
    if value is None:
        value = list(default or SECTIONS.get(str(fields.get("model_type")), ()))
        if not value:
            raise (plan or text).error("mrope_section", "is missing, which images need")
    plan = plan or text
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(each, int) and each > 0 for each in value):
        raise plan.error("mrope_section", f"{value!r} is not a list of three positive integers")
    heads = text.integer("num_attention_heads")
    lanes = text.integer("head_dim", max(1, text.integer("hidden_size") // heads))
    part = plan.number("partial_rotary_factor", text.number("partial_rotary_factor", 1.0))
    if sum(value) != (pairs := int(lanes * part) // 2):
        raise plan.error("mrope_section", f"{value!r} has {sum(value)} pairs of lanes, the heads have {pairs}")
    return tuple(value)


def block_sources(config: VisionConfig, mlp: dict[str, str]) -> Sources:
    """Return the tensors of the patch embedding and the layers; `mlp` has the modules of the MLP by our names."""
    found: Sources = {"patch.weight": ParameterSource(("patch_embed.proj.weight",), flat_kernel)}
    for layer in range(config.layers):
        own, stored = f"layers.{layer}", f"blocks.{layer}"
        norms = {f"{own}.{name}": f"{stored}.{name}" for name in ("norm1", "norm2")}
        found |= renamed(norms, biased=config.norm == "layer")
        found |= renamed({f"{own}.o": f"{stored}.attn.proj"}, biased=config.biases)
        found |= renamed({f"{own}.{name}": f"{stored}.mlp.{each}" for name, each in mlp.items()}, biased=config.biases)
        for index, name in enumerate("qkv"):
            for end in ("weight", "bias") if config.biases else ("weight",):
                found[f"{own}.{name}.{end}"] = ParameterSource((f"{stored}.attn.qkv.{end}",), third(index))
    return found


def _sources_qwen3(config: VisionConfig) -> Sources:
    found = block_sources(config, {"up": "linear_fc1", "down": "linear_fc2"})
    found |= {
        "patch.bias": ParameterSource(("patch_embed.proj.bias",)),
        "positions.weight": ParameterSource(("pos_embed.weight",)),
    }
    mergers = {"merger": "merger"} | {f"taps.{tap}": f"deepstack_merger_list.{tap}" for tap in range(len(config.taps))}
    for own, stored in mergers.items():
        parts = {"norm": "norm", "up": "linear_fc1", "down": "linear_fc2"}
        found |= renamed({f"{own}.{name}": f"{stored}.{each}" for name, each in parts.items()})
    return found


def _sources_qwen2(config: VisionConfig) -> Sources:
    gated = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    found = block_sources(config, gated if config.gated else {"up": "fc1", "down": "fc2"})
    found["patch.bias"] = zeros(config.hidden)
    found |= renamed({"merger.norm": "merger.ln_q"}, biased=config.norm == "layer")
    return found | renamed({"merger.up": "merger.mlp.0", "merger.down": "merger.mlp.2"})


PREFIXES = {"model.visual.": "", "visual.": "", "vision_tower.": ""}
"""As published, and as MLX's converters write them."""
QWEN3 = VisionFamily(PREFIXES, _read_qwen3, _sources_qwen3, QwenPreparer.of)
QWEN2_5 = VisionFamily(PREFIXES, _read_qwen2_5, _sources_qwen2, QwenPreparer.of)
QWEN2 = VisionFamily(PREFIXES, _read_qwen2, _sources_qwen2, QwenPreparer.of)
