"""Typed access to a config.json that names the field in every error."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from workers.checkpoints.json_files import CheckpointError

MAX_SIZE = 1 << 24
"""Above any real width, vocabulary or number of positions: a hostile config must not allocate absurd memory."""
MAX_PARTS = 4096
"""Above any real number of layers, or of experts in a layer: the tensors of each are listed by name."""
MAX_NUMBER = 1e15
"""Above any real base, factor or bound, and its inverse below any: products of several stay finite."""


class Fields:
    """The fields of config.json or of one object in it."""

    def __init__(
        self,
        file: Path,
        values: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        prefix: str = "",
        names: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """`defaults` stand for fields that are missing. A field that is null is not missing: it has no value. `names`
        has the name in the file for fields that have another one there, `aliases` the name that is looked up first for
        those that may have another one."""
        self.file = file
        self.values = values
        self._defaults = defaults or {}
        self._prefix = prefix
        self._names = names or {}
        self._aliases = aliases or {}

    def of_family(self, defaults: Mapping[str, Any], names: Mapping[str, str], aliases: Mapping[str, str]) -> "Fields":
        """Return the fields with a family's defaults, names and aliases (see `__init__`)."""
        return Fields(self.file, self.values, defaults, self._prefix, names, aliases)

    def without(self, names: Collection[str]) -> "Fields":
        """Return the fields but some."""
        kept = {name: value for name, value in self.values.items() if name not in names}
        return Fields(self.file, kept, self._defaults, self._prefix, self._names, self._aliases)

    def error(self, name: str, problem: str) -> CheckpointError:
        return CheckpointError(self.file, self._prefix + self._stored_name(name), problem)

    def _stored_name(self, name: str) -> str:
        """Return the name under which config.json has a field."""
        alias = self._aliases.get(name)
        return alias if alias is not None and alias in self.values else self._names.get(name, name)

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` where it is missing or null."""
        stored = self._stored_name(name)
        value = self.values[stored] if stored in self.values else self._defaults.get(self._names.get(name, name))
        return default if value is None else value

    def integer(self, name: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            raise self.error(name, f"{value!r} is not an integer from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        least = 1 / MAX_NUMBER
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= MAX_NUMBER:
            raise self.error(name, f"{value!r} is not a number from {least:g} to {MAX_NUMBER:g}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self.get(name) is None else self.number(name)

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        value = self.get(name)
        if not isinstance(value, list) or len(value) != count:
            raise self.error(name, f"is not a list of {count} numbers")
        return tuple(Fields(self.file, {name: item}, prefix=self._prefix).number(name) for item in value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"{value!r} is neither true nor false")
        return value

    def section(self, name: str) -> "Fields | None":
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "is not an object")
        return Fields(self.file, value, prefix=f"{self._prefix}{name}.")


def brief(value: object) -> str:
    """Return a value of a checkpoint as an error shows it: at most 64 characters of it."""
    text = repr(value)
    return text if len(text) <= 64 else f"{text[:64]}..."
