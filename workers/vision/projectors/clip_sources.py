"""The tensors of projectors with the towers of CLIP, InternViT and Pixtral, and of those without a tower: see
`projector_sources`."""

from workers.vision.config import VisionConfig
from workers.vision.families.family import Array, ParameterSource, Sources, flat_kernel, ones, renamed, zeros
from workers.vision.families.internvl import scaled, without_bias
from workers.vision.families.pixtral import patches_last
from workers.vision.projectors.projector_file import ProjectorFile
from workers.vision.projectors.projector_sources import PATCH, POSITIONS, layer_sources, with_channels_last

CLASS, BIAS = "v.class_embd", "v.patch_embd.bias"
MERGING = "mm.patch_merger.weight"
SCALES = {"o": "ls1", "down": "ls2"}
"""The tensors that multiply the outputs of modules."""


def internvl_sources(config: VisionConfig, file: ProjectorFile) -> Sources:
    found = layer_sources(config, file) | renamed(
        {"merger.norm": "mm.model.mlp.0", "merger.up": "mm.model.mlp.1", "merger.down": "mm.model.mlp.3"}
    )
    found |= renamed({"norm": "v.post_ln"}) | {
        "patch.weight": ParameterSource((PATCH,), flat_kernel),
        "patch.bias": ParameterSource((BIAS,)),
        "extra.weight": ParameterSource((CLASS, BIAS), without_bias),
        "positions.weight": ParameterSource((POSITIONS,), _flat_table),
    }
    for layer in range(config.layers):
        for name, factor in SCALES.items():
            for end in ("weight", "bias"):
                (stored,) = found[f"layers.{layer}.{name}.{end}"].tensors
                tensors = (stored, f"v.blk.{layer}.{factor}.weight")
                found[f"layers.{layer}.{name}.{end}"] = ParameterSource(tensors, scaled)
    return found


def llava_sources(config: VisionConfig, file: ProjectorFile) -> Sources:
    names = {"placed_norm": "v.pre_ln", "merger.up": "mm.0", "merger.down": "mm.2"}
    return (
        layer_sources(config, file)
        | renamed(names)
        | {
            "patch.weight": ParameterSource((PATCH,), flat_kernel),
            "patch.bias": zeros(config.hidden),
            "extra.weight": ParameterSource((CLASS,), lambda token: token.reshape(-1)),
            "positions.weight": ParameterSource((POSITIONS,)),
        }
    )


def pixtral_sources(config: VisionConfig, file: ProjectorFile) -> Sources:
    """Queries and keys have rotated lanes side by side."""

    def halves(tensor: Array) -> Array:
        pairs = tensor.reshape(config.heads, config.head_dim // 2, 2, -1)
        return pairs.swapaxes(1, 2).reshape(tensor.shape)

    found = layer_sources(config, file) | {"patch.weight": ParameterSource((PATCH,), flat_kernel)}
    found |= renamed(
        {
            "placed_norm": "v.pre_ln",
            "merger.norm": "mm.input_norm",
            "merger.up": "mm.1",
            "merger.down": "mm.2",
        }
    )
    found["merger.mix.0.weight"] = ParameterSource((MERGING,), lambda tensor: patches_last(tensor, config.group))
    for layer in range(config.layers):
        for name in "qk":
            own = f"layers.{layer}.{name}.weight"
            found[own] = ParameterSource(found[own].tensors, halves)
    return found


def unified_sources(config: VisionConfig, file: ProjectorFile) -> Sources:
    """Numbers of a patch have their channel first in the file."""

    def pixels_last(tensor: Array) -> Array:
        side = round((config.patch_values / 3) ** 0.5)
        return with_channels_last(tensor.reshape(-1, 3, side, side))

    norms = {"values_norm": "v.patch_norm.1", "patch_norm": "v.patch_norm.2", "placed_norm": "v.patch_norm.3"}
    found = renamed({**norms, "patch": "v.patch_embd", "merger.down": "mm.input_projection"})
    found["patch.weight"] = ParameterSource((PATCH,), pixels_last)
    for end in ("weight", "bias"):
        (stored,) = found[f"values_norm.{end}"].tensors
        found[f"values_norm.{end}"] = ParameterSource((stored,), lambda norm: pixels_last(norm)[0])
    return found | {
        "positions.weight": ParameterSource((POSITIONS,), lambda table: table[::-1]),
        "merger.norm.weight": ones(config.hidden),
    }


def _flat_table(table: Array) -> Array:
    return table.reshape(-1, table.shape[-1])
