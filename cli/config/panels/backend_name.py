"""The name of a backend in the settings: one of Baton's own, or one that a plug-in registers."""

from typing import Annotated

from pydantic import AfterValidator

from workers.plugins import OWN_BACKENDS, registered_backends

ALLOWED = f"one of {', '.join(OWN_BACKENDS)} or the name of an installed plug-in"


def backend_names() -> tuple[str, ...]:
    """Return all names, those of plug-ins by the metadata of their distributions."""
    return (*OWN_BACKENDS, *registered_backends())


def _known(name: str) -> str:
    # Plug-ins are looked for only if the name is none of our own: that reads the metadata of all distributions.
    if name not in OWN_BACKENDS and name not in registered_backends():
        raise ValueError("no such backend")
    return name


BackendName = Annotated[str, AfterValidator(_known)]
