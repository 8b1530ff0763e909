"""Families that other distributions register under the entry points `baton_serve.families`, by `model_type`."""

from collections.abc import Mapping

from workers.checkpoints.architectures.families import FAMILIES
from workers.checkpoints.architectures.family import Family
from workers.checkpoints.architectures.fields import Fields
from workers.plugins import FAMILIES as GROUP
from workers.plugins import Plugin, registered


def registered_family(model_type: str) -> Plugin | None:
    """Return the plug-in of a family by its `model_type`; None for one of Baton's own and for an unknown one."""
    return None if model_type in FAMILIES else registered(GROUP, frozenset(FAMILIES)).get(model_type)


def families_for(fields: Fields, families: Mapping[str, Family]) -> Mapping[str, Family]:
    """Return `families`, with the one that a plug-in registers for the `model_type` of a config.json. It is imported
    only for such a checkpoint. Raises `PluginRefused`."""
    name = fields.get("model_type")
    if families is not FAMILIES or not isinstance(name, str) or (plugin := registered_family(name)) is None:
        return families
    return {**families, name: plugin.load(Family)}
