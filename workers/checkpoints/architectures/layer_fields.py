"""Reads the fields of config.json that describe each layer, and the mixture of experts of layers that have one."""

from workers.checkpoints.architectures.family import Family, rotated_layers
from workers.checkpoints.architectures.fields import MAX_PARTS, Fields
from workers.checkpoints.architectures.mixers import read_kinds
from workers.checkpoints.architectures.parts import ExpertRouter, Experts, LayerConfig


def read_plan(fields: Fields, family: Family, layers: int) -> tuple[LayerConfig, ...]:
    """Read the configuration of each layer."""
    windowed = _windowed(fields, family, layers)
    window = fields.integer("sliding_window") if any(windowed) else None
    rotated = rotated_layers(fields, layers) if family.marks_rotated_layers else (True,) * layers
    if family.rotates_windowed and fields.get("sliding_window") is not None:
        rotated = windowed
    if not family.positions(fields):
        rotated = (False,) * layers
    experts = _layers_with_experts(fields, family, layers)
    kinds = read_kinds(fields, family, layers)
    return tuple(
        LayerConfig(
            window if windowed[layer] else None,
            None if not rotated[layer] else int(family.local_rope is not None and windowed[layer]),
            experts[layer],
            kinds[layer],
            mlp=not family.single_parts or kinds[layer] == "none",
        )
        for layer in range(layers)
    )


def _windowed(fields: Fields, family: Family, layers: int) -> tuple[bool, ...]:
    """Find the layers with an attention window: by `layer_types` (transformers 5), or by the family's rule."""
    if family.mixers:
        return (False,) * layers
    kinds = fields.get("layer_types")
    if kinds is not None and (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or any(kind not in ("full_attention", "sliding_attention") for kind in kinds)
    ):
        raise fields.error("layer_types", f"is not 'full_attention' or 'sliding_attention' for each of {layers} layers")
    switched_off = family.window_switch and not fields.flag("use_sliding_window", False)
    without = fields.get("sliding_window") is None and family.local_rope is None
    if family.windowed is None or switched_off or without:
        return (False,) * layers
    if kinds is not None:
        return tuple(kind == "sliding_attention" for kind in kinds)
    return family.windowed(fields, layers)


def _layers_with_experts(fields: Fields, family: Family, layers: int) -> tuple[bool, ...]:
    """Find the layers with experts."""
    if not family.experts:
        return (False,) * layers
    if family.layers_with_experts is not None:
        return family.layers_with_experts(fields, layers)
    step, dense = fields.integer("decoder_sparse_step", 1), fields.get("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise fields.error("mlp_only_layers", "is not a list of layers")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(layers))


def read_experts(fields: Fields, family: Family) -> Experts | None:
    """Read the mixture of experts; None for a family without one."""
    if not family.experts:
        return None
    name = "num_experts" if fields.get("num_local_experts") is None else "num_local_experts"
    count, chosen = fields.integer(name, most=MAX_PARTS), fields.integer("num_experts_per_tok")
    if chosen > count:
        raise fields.error("num_experts_per_tok", f"{chosen} is more than {name}, {count}")
    normalize = family.normalizes_experts
    if normalize is None:
        normalize = fields.flag("norm_topk_prob", False)
    ffn, router = fields.integer(family.expert_ffn), family.read_router(fields)
    _check_groups(fields, router, count, chosen)
    shared = _shared_width(fields, family, ffn)
    latent = family.expert_latent
    return Experts(
        *(count, chosen, ffn, normalize, shared, family.shared_gate),
        router=router,
        biases=family.expert_biases,
        gated=family.gated,
        latent=0 if latent is None or fields.get(latent) is None else fields.integer(latent),
    )


def _check_groups(fields: Fields, router: ExpertRouter, count: int, chosen: int) -> None:
    """Refuse groups that are not equal, or that leave too few experts to choose from."""
    size = count // router.groups
    if router.groups > 1 and (count % router.groups or size < router.group_best):
        problem = f"{router.groups} groups of {count} experts are not equal, or of fewer than {router.group_best}"
        raise fields.error("n_group", problem)
    if not -(-chosen // size) <= router.kept_groups <= router.groups:
        problem = f"{router.kept_groups} of {router.groups} groups of {size} experts do not leave {chosen} to choose"
        raise fields.error("topk_group", problem)


def _shared_width(fields: Fields, family: Family, expert: int) -> int:
    """Read the width of the shared expert. It may be 0 in a family where that is the default, or that has a number of
    shared experts."""
    if family.shared_count is not None:
        none = fields.get(family.shared_count) in (None, 0)
        return 0 if none else expert * fields.integer(family.shared_count, most=MAX_PARTS)
    name = family.shared_ffn
    if name is None or fields.get(name) == 0 == family.defaults.get(name):
        return 0
    width: int = fields.integer(name)
    return width
