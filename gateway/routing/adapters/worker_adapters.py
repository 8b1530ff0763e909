"""The adapters of one incarnation of a worker: what it has, what it loads, and what it has to forget."""

import secrets
from dataclasses import dataclass, field

from gateway.routing.adapters.registry import AdapterRegistry, AdapterVersion
from protocol.bounds import MAX_COUNT
from protocol.commands import LoadAdapter, UnloadAdapter


@dataclass(slots=True)
class WorkerAdapters:
    """Owned by `AdapterLoads`. A version that was loaded, forgotten and loaded again may have another number: it is
    unloaded before the worker is asked again."""

    incarnation: int
    loaded: dict[str, AdapterVersion] = field(default_factory=dict)
    """By their names on workers, as the next two."""
    asked: dict[int, AdapterVersion] = field(default_factory=dict)
    """Those that it is loading, by the numbers of the questions."""
    refused: dict[str, AdapterVersion] = field(default_factory=dict)
    unloading: set[str] = field(default_factory=set)
    """Those for which no `UnloadAdapter` was sent yet."""

    def compare(self, registry: AdapterRegistry) -> None:
        """Release what is not wanted, or not with this number, any more."""
        for wire, version in list(self.loaded.items()):
            if registry.find(wire) != version:
                del self.loaded[wire]
                self.unloading.add(wire)
        self.refused = {wire: each for wire, each in self.refused.items() if registry.find(wire) == each}

    def without_place(self, wanted: list[AdapterVersion], places: int) -> list[AdapterVersion]:
        """Return the versions for which the worker has no place, and note that it refuses them."""
        found = [each for each in wanted if each.number > places and each.wire not in self.refused]
        self.refused |= {each.wire: each for each in found}
        return found

    def unloads(self) -> list[UnloadAdapter]:
        """Return the commands for what the worker has to forget, which come before those of `loads`."""
        return [UnloadAdapter(secrets.randbelow(MAX_COUNT), wire) for wire in sorted(self.unloading)]

    def loads(self, wanted: list[AdapterVersion], places: int) -> dict[int, AdapterVersion]:
        """Return the versions that it has to be asked for, by the numbers of the questions. What it loads under the
        same name and with another number ends first."""
        there = {*self.loaded, *self.refused, *(each.wire for each in self.asked.values())}
        missing = [each for each in wanted if each.wire not in there and each.number <= places]
        return {secrets.randbelow(MAX_COUNT): each for each in missing}

    def sent(self, loads: dict[int, AdapterVersion]) -> None:
        """Note that the commands were sent."""
        self.unloading.clear()
        self.asked |= loads

    def answered(self, query: int, *, refused: bool, registry: AdapterRegistry) -> AdapterVersion | None:
        """Note an answer. Returns the version that the worker has now, or has refused; None for the answer of an
        unload, and for a version that is not wanted any more."""
        if (version := self.asked.pop(query, None)) is None:
            return None
        current = registry.find(version.wire) == version
        if refused and current:
            self.refused[version.wire] = version
        elif not refused:
            self.loaded[version.wire] = version
            self.compare(registry)
        return version if current else None


def load_command(query: int, version: AdapterVersion) -> LoadAdapter:
    """Return the command that loads a version."""
    return LoadAdapter(query, version.wire, version.number, version.paths, version.digest)
