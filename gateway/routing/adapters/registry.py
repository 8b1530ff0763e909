"""The adapters that were loaded at run time, and their versions. Pure: what workers have to load follows from it."""

import re
from collections.abc import Iterator, KeysView
from dataclasses import dataclass

from protocol.adapter_files import DIGEST_BYTES
from protocol.bounds import MAX_NAME

MAX_ADAPTER_NAME = MAX_NAME - 2 * DIGEST_BYTES - 1
"""Characters of an adapter's name, which a version has beside its digest."""

_VERSION = re.compile(rf".+@[0-9a-f]{{{2 * DIGEST_BYTES}}}", re.DOTALL)


def is_version(adapter: str) -> bool:
    """The name on workers is one of a version that was loaded at run time."""
    return _VERSION.fullmatch(adapter) is not None


@dataclass(frozen=True, slots=True)
class AdapterVersion:
    """An adapter with certain weights. Sequences keep theirs, whatever has the name later."""

    name: str
    """Its name in requests."""
    model: str
    number: int
    """Its place on every worker of the model."""
    digest: str
    paths: tuple[str, ...]
    """Directories that have its files."""

    @property
    def wire(self) -> str:
        """Its name on workers: another one for other weights, so that these share no cache rows with it."""
        return f"{self.name}@{self.digest}"


class AdapterRegistry:
    """Owns the versions of all models. A version is wanted from its load until no sequence has it any more; requests
    name the one that is published."""

    def __init__(self) -> None:
        self._wanted: dict[str, AdapterVersion] = {}
        """By their names on workers."""
        self._published: dict[str, AdapterVersion] = {}
        """By name, in the order in which they were loaded."""

    def wanted(self, model: str) -> list[AdapterVersion]:
        """Return the versions that the workers of a model should have."""
        return [each for each in self._wanted.values() if each.model == model]

    def wants(self, wire: str) -> bool:
        """Workers should have this version."""
        return wire in self._wanted

    def wires(self) -> KeysView[str]:
        """The names of all wanted versions on workers."""
        return self._wanted.keys()

    def find(self, wire: str) -> AdapterVersion | None:
        """Return a wanted version by its name on workers."""
        return self._wanted.get(wire)

    def free_number(self, model: str, places: int) -> int | None:
        """Return the lowest number that no wanted version of a model has; None if all are taken."""
        taken = {each.number for each in self.wanted(model)}
        return next((number for number in range(1, places + 1) if number not in taken), None)

    def want(self, version: AdapterVersion) -> None:
        """Let workers load a version."""
        self._wanted[version.wire] = version

    def publish(self, version: AdapterVersion) -> None:
        """Let requests name a wanted version, in place of the one that has its name now."""
        self._published.pop(version.name, None)
        self._published[version.name] = version

    def retire(self, name: str) -> AdapterVersion | None:
        """Let no more requests name an adapter. Returns its version, which stays wanted; None if there is none."""
        return self._published.pop(name, None)

    def drop(self, wire: str) -> None:
        """Let workers forget a version that no sequence has."""
        self._wanted.pop(wire, None)

    def retired(self) -> Iterator[AdapterVersion]:
        """The wanted versions that no request can name, those that are being loaded among them."""
        return (each for each in self._wanted.values() if self._published.get(each.name) is not each)

    def version(self, name: str) -> AdapterVersion | None:
        """Return the version that a request names; None if there is none."""
        return self._published.get(name)

    def names(self, model: str) -> tuple[str, ...]:
        """The adapters of a model that requests may name."""
        return tuple(each.name for each in self._published.values() if each.model == model)
