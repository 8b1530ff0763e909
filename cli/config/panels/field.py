"""A setting with what the help shows of it."""

from typing import Any

from pydantic import Field

from gateway.settings import GatewaySettings

GATEWAY = GatewaySettings()
"""The defaults of the gateway's settings."""

MODEL, ENGINE, SERVER, LIMITS, JOINING, PLACEMENT = "Model", "Engine", "Server", "Limits", "Joining", "Placement"
PANELS = (MODEL, ENGINE, SERVER, LIMITS, JOINING, PLACEMENT)
"""The headings, in the order of the help."""


def setting(default: Any, panel: str, help: str, metavar: str = "", allowed: str = "", **bounds: Any) -> Any:
    """Declare a setting under a heading of `PANELS`. `bounds` are those of pydantic's `Field`."""
    extra: dict[str, Any] = {"panel": panel, "metavar": metavar, "allowed": allowed}
    return Field(default, description=help, json_schema_extra=extra, **bounds)
