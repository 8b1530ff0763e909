"""Tools with descriptions, for templates that fail without one (gpt-oss), though clients may leave it out."""

from collections.abc import Mapping, Sequence
from typing import Any


def with_descriptions(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    """Return tools of which those without a description have an empty one; None if all have one."""
    if not tools or not any(_lacks(tool) for tool in tools):
        return None
    return [{**tool, "function": {**tool["function"], "description": ""}} if _lacks(tool) else tool for tool in tools]


def _lacks(tool: Mapping[str, Any]) -> bool:
    return isinstance(function := tool.get("function"), dict) and "description" not in function
