"""Backends that other distributions register under the entry points `baton_serve.backends`."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from workers.checkpoints.checkpoint import ModelConfig
from workers.engine.runner import Runner
from workers.host.probe import Probe
from workers.load_options import LoadOptions, Progress
from workers.plugins import registered_backends


def _no_drafts(device: str, slots: int) -> bool:
    """Decline to verify drafts."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPlugin:
    """A backend of another distribution. Its module should import a heavy library in its functions only."""

    name: str
    """The name of its entry point, which `--backend` takes."""
    load: Callable[[Path, ModelConfig, LoadOptions, Progress], Runner]
    """Loads a checkpoint, as the `load` of the other runners does: raises `LoadRefused` for what it cannot load."""
    probe: Callable[[], list[Probe]]
    """Tries its devices for `baton doctor`, in a process of its own."""
    digest: tuple[str, ...]
    """Distributions whose versions may change its tokens, that of the plug-in included. Workers continue each other's
    streams only where these are equal."""
    packages: tuple[str, ...] = ()
    """Modules that it needs, by which a missing installation is found without an import."""
    verifies_drafts: Callable[[str, int], bool] = _no_drafts
    """Returns True for a device and a number of slots whose steps can verify drafts: a row of several has the bits of
    one alone."""

    def versions(self) -> str:
        """Return the versions of the distributions of `digest`."""
        return " ".join(f"{name} {metadata.version(name)}" for name in self.digest)


@functools.cache
def load_backend(name: str) -> BackendPlugin | None:
    """Import the backend of another distribution; None if there is none of this name. Raises `PluginRefused`."""
    plugin = registered_backends().get(name)
    if plugin is None:
        return None
    found = plugin.load(BackendPlugin)
    if found.name != name:
        raise plugin.refused(f"has the name {found.name!r}: its entry point must have the same")
    for field in ("load", "probe", "verifies_drafts"):
        if not callable(getattr(found, field)):
            raise plugin.refused(f"has no function as {field!r}")
    for field in ("digest", "packages"):
        texts = getattr(found, field)
        if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
            raise plugin.refused(f"has no tuple of texts as {field!r}")
    try:
        found.versions()
    except metadata.PackageNotFoundError as error:
        raise plugin.refused(f"names a distribution in `digest` that is not installed: {error}") from error
    return found
