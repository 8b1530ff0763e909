"""Sampling parameters that a client leaves open, for which a checkpoint may recommend a value."""

from collections.abc import Mapping

from msgspec import Struct

from protocol.commands import SamplingDefault

FIELDS: Mapping[SamplingDefault, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "repetition_penalty": ("repetition_penalty", "repeat_penalty"),
}
"""The names of each parameter in any dialect."""


def unset_parameters(body: Struct) -> tuple[SamplingDefault, ...]:
    """Return the parameters that the fields of a body leave open, or that its dialect does not have."""
    return tuple(
        parameter for parameter, names in FIELDS.items() if all(getattr(body, name, None) is None for name in names)
    )
