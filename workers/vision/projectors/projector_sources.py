"""The tensors of a projector of which a tower's parameters are made."""

from collections.abc import Callable, Mapping

import numpy as np

from workers.vision.config import VisionConfig
from workers.vision.families.family import Array, ParameterSource, Sources, flat_kernel, ones, renamed, third, zeros
from workers.vision.families.gemma4 import RANGES, lanes_in_pairs, stacked_ranges
from workers.vision.projectors.projector_file import ProjectorFile

LAYER = {
    "norm1": "ln1",
    "norm2": "ln2",
    "o": "attn_out",
    "up": "ffn_up",
    "gate": "ffn_gate",
    "down": "ffn_down",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post1": "attn_post_norm",
    "post2": "ffn_post_norm",
}
"""The modules of a layer by canonical names; one that a tower has not is not asked for."""
SWAPPED = {"up": "ffn_down", "down": "ffn_up"}
MATRICES = {"q": "attn_q", "k": "attn_k", "v": "attn_v"}
PATCH, SECOND = "v.patch_embd.weight", "v.patch_embd.weight.1"
POSITIONS = "v.position_embd.weight"

SourcesOf = Callable[[VisionConfig, ProjectorFile], Sources]


def layer_sources(config: VisionConfig, file: ProjectorFile) -> Sources:
    names = LAYER | (SWAPPED if file.swapped else {})
    fused = file.has("v.blk.0.attn_qkv.weight")
    found: Sources = {}
    for layer in range(config.layers):
        own, stored = f"layers.{layer}", f"v.blk.{layer}"
        found |= renamed({f"{own}.{name}": f"{stored}.{each}" for name, each in names.items()})
        if not fused:
            found |= renamed({f"{own}.{name}": f"{stored}.{each}" for name, each in MATRICES.items()})
            continue
        for index, name in enumerate("qkv"):
            for end in ("weight", "bias"):
                found[f"{own}.{name}.{end}"] = ParameterSource((f"{stored}.attn_qkv.{end}",), third(index))
    return found


def _outside(names: Mapping[str, str]) -> Sources:
    return renamed(names) | {"positions.weight": ParameterSource((POSITIONS,))}


def qwen_sources(config: VisionConfig, file: ProjectorFile) -> Sources:
    """The matrix of patches is that of two frames, in a tensor each."""
    found = layer_sources(config, file) | _outside(
        {"merger.norm": "v.post_ln", "merger.up": "mm.0", "merger.down": "mm.2"}
    )
    found["patch.weight"] = ParameterSource((PATCH, SECOND), _two_frames)
    found["patch.bias"] = (
        ParameterSource(("v.patch_embd.bias",)) if file.has("v.patch_embd.bias") else zeros(config.hidden)
    )
    for tap, layer in enumerate(config.taps):
        names = {"norm": "norm", "up": "fc1", "down": "fc2"}
        found |= renamed({f"taps.{tap}.{own}": f"v.deepstack.{layer}.{each}" for own, each in names.items()})
    return found


def siglip_sources(merger: Mapping[str, str], *, channels_last: bool = False) -> SourcesOf:
    """Return the sources of SigLIP's towers with the modules of a merger. A family whose numbers of a patch have their
    channel last has it first in the file."""

    def sources(config: VisionConfig, file: ProjectorFile) -> Sources:
        found = layer_sources(config, file) | _outside({"norm": "v.post_ln", "patch": "v.patch_embd", **merger})
        found["patch.weight"] = ParameterSource((PATCH,), with_channels_last if channels_last else flat_kernel)
        return found

    return sources


def gemma3_sources(config: VisionConfig, file: ProjectorFile) -> Sources:
    """The weights of the norm behind the tower have the one that Gemma 3 leaves out."""
    return siglip_sources({"merger.norm": "mm.soft_emb_norm"})(config, file) | {
        "merger.down.weight": ParameterSource(("mm.input_projection.weight",), np.transpose)
    }


def gemma4_sources(config: VisionConfig, file: ProjectorFile) -> Sources:

    def rotated(tensor: Array) -> Array:
        return lanes_in_pairs(tensor, config.head_dim)

    found = layer_sources(config, file) | renamed({"merger.down": "mm.input_projection"}, biased=False)
    found |= {
        "patch.weight": ParameterSource((PATCH,), with_channels_last),
        "positions.weight": ParameterSource((POSITIONS,), lambda tensor: tensor[::-1]),
        "merger.norm.weight": ones(config.hidden),
        "standard.bias": ParameterSource(("v.std_bias",)),
        "standard.scale": ParameterSource(("v.std_scale",)),
    }
    for layer in range(config.layers):
        own = f"layers.{layer}"
        for name in ("q", "k", "q_norm", "k_norm"):
            found[f"{own}.{name}.weight"] = ParameterSource(found[f"{own}.{name}.weight"].tensors, rotated)
        for name, each in (MATRICES | LAYER).items():
            ranges = tuple(f"v.blk.{layer}.{each}.{end}" for end in RANGES)
            found[f"{own}.{name}.clip"] = ParameterSource(ranges, stacked_ranges)
    return found


def _two_frames(first: Array, second: Array) -> Array:
    return np.stack([first, second], axis=2).reshape(len(first), -1)


def with_channels_last(tensor: Array) -> Array:
    return np.moveaxis(tensor, 1, -1).reshape(len(tensor), -1)
