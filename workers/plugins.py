"""Plug-ins: what other distributions register under entry points, without a change in Baton.

An entry point is found by the metadata of its distribution and imported when it is used. It is code that the user has
installed, and runs with all rights of the process, as any package does.
https://packaging.python.org/en/latest/specifications/entry-points/
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import structlog

from workers.errors import LoadRefused

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BACKENDS = "baton_serve.backends"
FAMILIES = "baton_serve.families"
ADAPTERS = "baton_serve.mlx_adapters"
OWN_BACKENDS = ("auto", "iree", "mlx", "scripted")
"""The names of backends that no plug-in may have."""
MAX_NAME = 64
"""Characters of a plug-in's name."""
_Kind = TypeVar("_Kind")


class PluginRefused(LoadRefused):
    """Raised for a plug-in that is needed and cannot be used; the text names its distribution and the reason."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point of another distribution."""

    group: str
    name: str
    distribution: str
    """Name and version of the distribution; those of all that register the name, if there are several."""
    entry: "EntryPoint"
    problem: str = ""
    """Why it cannot be used; empty if nothing is known before it is imported."""

    def refused(self, problem: str) -> PluginRefused:
        """Return the error about this plug-in, and log it."""
        text = f"{self.group}: {self.name!r} of {self.distribution} {problem}"
        structlog.get_logger().warning(
            "plugin_refused", group=self.group, name=self.name, distribution=self.distribution, reason=problem
        )
        return PluginRefused(text)

    def load(self, kind: type[_Kind]) -> _Kind:
        """Import the object. Raises `PluginRefused` for a name that several have, an import that fails, and an object
        of another type."""
        if self.problem:
            raise self.refused(self.problem)
        try:
            found = self.entry.load()
        except Exception as error:
            raise self.refused(f"cannot be imported: {type(error).__name__}: {error}") from error
        if not isinstance(found, kind):
            wanted = f"{kind.__module__}.{kind.__qualname__}"
            raise self.refused(f"is of the type {type(found).__name__}, not {wanted}: correct {self.entry.value}")
        structlog.get_logger().info(
            "plugin_loaded", group=self.group, name=self.name, distribution=self.distribution, object=self.entry.value
        )
        return found


@functools.cache  # reading the metadata of all distributions takes some tens of milliseconds
def registered(group: str, reserved: frozenset[str]) -> Mapping[str, Plugin]:
    """Return the plug-ins of a group by their names, without an import. One under a `reserved` name is ignored, and
    logged."""
    from importlib.metadata import entry_points  # which a command without plug-ins does not need

    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, []).append(entry)
    plugins = {name: _plugin(group, name, entries, reserved) for name, entries in sorted(found.items())}
    for plugin in plugins.values():
        if plugin.problem:
            plugin.refused(plugin.problem)
    return {name: plugin for name, plugin in plugins.items() if name not in reserved}


def registered_backends() -> Mapping[str, Plugin]:
    """Return the backends of other distributions by name, without an import."""
    return registered(BACKENDS, frozenset(OWN_BACKENDS))


def _plugin(group: str, name: str, entries: "list[EntryPoint]", reserved: frozenset[str]) -> Plugin:
    owners = " and ".join(sorted(_owner(entry) for entry in entries))
    problem = ""
    if name in reserved:
        problem = "is ignored: the name is one of Baton's own, choose another one"
    elif len(entries) > 1:
        problem = "is registered more than once: uninstall all but one"
    elif not 0 < len(name) <= MAX_NAME or not name.isprintable():
        problem = f"has no printable name of 1 to {MAX_NAME} characters"
    return Plugin(group, name, owners, entries[0], problem)


def _owner(entry: "EntryPoint") -> str:
    return "an unknown distribution" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
