"""Rotary position embeddings in config.json, in the fields of transformers 5 and of earlier versions."""

import math

from workers.checkpoints.architectures.fields import Fields
from workers.checkpoints.architectures.rope import Linear, Llama3, LongRope, Proportional, Rope, Scaling, Yarn

KEYS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
    "proportional": {"factor"},
    "longrope": {
        "factor",
        "short_factor",
        "long_factor",
        "attention_factor",
        "original_max_position_embeddings",
        "short_mscale",
        "long_mscale",
    },
}
"""The keys of each kind of scaling, beside `COMMON_KEYS`; another key would mean another formula."""
COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
SECTION_KEYS = ("mrope_section", "mrope_interleaved")
"""The keys of positions that differ between sections of lanes, for images: a text has the same in all of them."""
GROWTH = ("llama_4_scaling_beta", "max_position_embeddings")
"""Keys of plans by which Ministral 3's queries grow beyond `original_max_position_embeddings`."""


def read_ropes(
    fields: Fields,
    head_dim: int,
    *,
    local: str | None,
    partial: bool,
    grows_queries: bool = False,
    sections: bool = False,
) -> tuple[Rope, ...]:
    """Read the model's rotary embeddings.

    `local` names the field with the base of a second one, for windowed layers, which an older `rope_scaling` does not
    scale. `partial` allows a rotation of part of a head, `grows_queries` the keys `GROWTH`, `sections` the keys of
    images' positions. Raises `CheckpointError`.
    """
    ignored = (GROWTH if grows_queries else ()) + (SECTION_KEYS if sections else ())
    plan, older = (
        each and each.without(ignored) for each in (fields.section("rope_parameters"), fields.section("rope_scaling"))
    )
    if plan is None:
        plans: tuple[Fields | None, Fields | None] = (older, None)
    elif local is None:
        plans = (plan, None)
        if older is not None and _scaling_of(older) != _scaling_of(plan):
            raise fields.error("rope_scaling", "says something else than rope_parameters")
    else:
        plans = (plan.section("full_attention"), plan.section("sliding_attention"))
        if plans[0] is None:
            raise plan.error("full_attention", "is missing")
    thetas = ("rope_theta",) if local is None else ("rope_theta", local)
    return tuple(_read(fields, each, theta, head_dim, partial) for theta, each in zip(thetas, plans, strict=False))


def _scaling_of(plan: Fields) -> dict[str, object]:
    """The scaling of a plan, to be compared: without the base, and with the kind under one name."""
    kind = plan.get("rope_type") or plan.get("type")
    values = {name: value for name, value in plan.values.items() if name not in ("rope_theta", "type")}
    return values | {"rope_type": kind}


def _read(fields: Fields, plan: Fields | None, theta_name: str, head_dim: int, partial: bool) -> Rope:
    """Read one rotary embedding from its `rope_parameters`, or from the older `rope_theta` and `rope_scaling`."""
    theta = fields.number(theta_name, 10000.0)
    if plan is None:
        plan = Fields(fields.file, {})
    layered = next((name for name, value in plan.values.items() if isinstance(value, dict)), None)
    if layered is not None:
        raise plan.error(layered, "positions that differ between layers are not supported for this family")
    theta = plan.number("rope_theta", theta)
    if theta <= 1:
        raise fields.error(theta_name, f"{theta} is not above 1")
    if plan.get("rope_type") == "proportional":
        return Rope(theta, head_dim, _proportional(fields, plan, head_dim))
    dims = _rotated(fields, plan, head_dim, partial)
    return Rope(theta, dims, _scaling(fields, plan, dims))


def _rotated(fields: Fields, plan: Fields, head_dim: int, partial: bool) -> int:
    where = plan if plan.get("partial_rotary_factor") is not None else fields
    factor = where.number("partial_rotary_factor", 1.0)
    dims = int(head_dim * factor)
    if factor != 1 and not partial:
        raise where.error("partial_rotary_factor", f"{factor!r} is not supported, only 1")
    if not 0 < dims <= head_dim or dims % 2:
        raise where.error("partial_rotary_factor", f"{factor!r} of {head_dim} lanes is not an even number of them")
    return dims


def _proportional(fields: Fields, plan: Fields, head_dim: int) -> Proportional:
    """Read the part of a head's pairs that rotates."""
    _check_keys(plan, "proportional")
    part = plan.number("partial_rotary_factor", 1.0)
    pairs = int(part * head_dim // 2)
    if not 0 < pairs <= head_dim // 2:
        raise plan.error("partial_rotary_factor", f"{part!r} of {head_dim // 2} pairs of lanes is none, or more")
    return Proportional(pairs, plan.number("factor", 1.0))


def _scaling(fields: Fields, plan: Fields, dims: int) -> Scaling | None:
    kind = plan.get("rope_type") or plan.get("type") or "default"
    if kind == "su" or (kind == "yarn" and plan.get("long_factor") is not None):
        kind = "longrope"  # as Phi-3 named it at first
    if not isinstance(kind, str) or kind not in KEYS:
        raise plan.error("rope_type", f"{kind!r} is not supported, only {', '.join(map(repr, KEYS))}")
    _check_keys(plan, kind)
    if kind == "linear":
        return Linear(plan.number("factor"))
    if kind == "llama3":
        return _llama3(plan)
    if kind == "yarn":
        return _yarn(fields, plan)
    return _longrope(fields, plan, dims) if kind == "longrope" else None


def _check_keys(plan: Fields, kind: str) -> None:
    for name, value in plan.values.items():
        if value is not None and name not in COMMON_KEYS | KEYS[kind]:
            raise plan.error(name, f"{value!r} is not supported for {kind!r} positions")


def _llama3(plan: Fields) -> Llama3:
    low, high = plan.number("low_freq_factor"), plan.number("high_freq_factor")
    if low >= high:
        raise plan.error("high_freq_factor", f"{high} is not above low_freq_factor, {low}")
    return Llama3(plan.number("factor"), low, high, plan.integer("original_max_position_embeddings"))


def _original(fields: Fields, plan: Fields) -> int:
    """Read the positions of the first training. Phi-3 has them outside of the plan, and that value wins."""
    name = "original_max_position_embeddings"
    if fields.get(name) is not None:
        return fields.integer(name)
    return plan.integer(name, fields.integer("max_position_embeddings"))


def _yarn(fields: Fields, plan: Fields) -> Yarn:
    original = _original(fields, plan)
    factor = plan.number("factor", fields.integer("max_position_embeddings") / original)
    attention = plan.optional_number("attention_factor")
    if attention is None:
        attention = _sharpness(factor, 1.0)
        if plan.get("mscale") and plan.get("mscale_all_dim"):
            attention = _sharpness(factor, plan.number("mscale")) / _sharpness(factor, plan.number("mscale_all_dim"))
    fast, slow = plan.number("beta_fast", 32.0), plan.number("beta_slow", 1.0)
    return Yarn(factor, original, attention, fast, slow, plan.flag("truncate", True))


def attention_sharpness(fields: Fields) -> float:
    """Read the factor of queries and of keys that DeepSeek's models have with scaled positions, by `mscale_all_dim`;
    1 where there is none."""
    plan = fields.section("rope_parameters") or fields.section("rope_scaling")
    if plan is None or (plan.get("rope_type") or plan.get("type") or "default") == "default":
        return 1.0
    return _sharpness(plan.number("factor"), plan.number("mscale_all_dim")) if plan.get("mscale_all_dim") else 1.0


def _sharpness(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(fields: Fields, plan: Fields, dims: int) -> LongRope:
    original = _original(fields, plan)
    factor = plan.number("factor", fields.integer("max_position_embeddings") / original)
    if original < 2:
        raise fields.error("original_max_position_embeddings", f"{original} is too few")
    attention = plan.optional_number("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    short, long = plan.numbers("short_factor", dims // 2), plan.numbers("long_factor", dims // 2)
    if plan.get("short_mscale") is None and plan.get("long_mscale") is None:
        return LongRope(short, long, original, attention)
    # Phi-3.5-MoE states the factors themselves.
    return LongRope(short, long, original, plan.number("short_mscale"), plan.number("long_mscale"))
