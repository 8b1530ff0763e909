"""Writes an example of what a JSON schema allows, from which the first answer is drafted. Pure.

It need not be valid: it has the names and the values that the schema states, in their order, as answers have them.
"""

import json
from collections.abc import Mapping
from typing import Any

MAX_VALUES = 128
"""Values of an example, and the most characters of one of its strings."""
MAX_DEPTH = 8
MAX_PATH = 1024
"""Characters of a reference that is followed: each value of a schema may have a long one again."""
ITEMS = 2
"""Elements of an array: what follows one is seen then."""


def example_of(schema: Mapping[str, Any]) -> str:
    """Return the JSON text of an example. A reference is followed within the schema; of alternatives the first one is
    taken, and of an enumeration one value after the other."""
    return json.dumps(_Writer(schema).value(schema, 0), ensure_ascii=False)


class _Writer:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MAX_VALUES
        self._turns: dict[int, int] = {}
        """The last turn of each enumeration, by its identity."""
        self._stated: dict[int, Any] = {}
        """Stated values without the long ones, by their identity: many references may lead to one."""

    def value(self, schema: Any, depth: int) -> Any:
        """Return an example of a schema at a depth; None beyond the bounds."""
        self._left -= 1
        schema = self._resolved(schema)
        if self._left < 0 or depth > MAX_DEPTH or not isinstance(schema, Mapping):
            return None
        if "const" in schema:
            return self._short(schema["const"])
        if isinstance(choices := schema.get("enum"), list) and choices:
            turn = self._turns[id(choices)] = self._turns.get(id(choices), -1) + 1
            return self._short(choices[turn % len(choices)])
        for name in ("anyOf", "oneOf", "allOf"):
            if isinstance(options := schema.get(name), list) and options and "properties" not in schema:
                return self.value(options[0], depth)
        return self._typed(schema, depth)

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        kind = kind[0] if isinstance(kind, list) and kind else kind
        if kind == "object" or "properties" in schema:
            named = schema.get("properties")
            fields = named.items() if isinstance(named, Mapping) else ()
            return {name[:MAX_VALUES]: self.value(each, depth + 1) for name, each in fields if self._left > 0}
        if kind == "array":
            first = schema.get("prefixItems")
            schemas = first if isinstance(first, list) and first else [schema.get("items", {})] * ITEMS
            return [self.value(each, depth + 1) for each in schemas[:MAX_VALUES] if self._left > 0]
        if kind == "boolean":
            turn = self._turns[0] = self._turns.get(0, -1) + 1
            return turn % 2 == 0
        return {"string": "a", "integer": 1, "number": 1.5}.get(kind) if isinstance(kind, str) else None

    def _resolved(self, schema: Any) -> Any:
        """Follow a reference to another part of the schema, and one from there."""
        for _ in range(MAX_DEPTH):
            path = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(path, str):
                return schema
            if (path != "#" and not path.startswith("#/")) or len(path) > MAX_PATH:
                return None
            schema = self._root
            for part in path.split("/")[1:]:
                schema = schema.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
        return None

    def _short(self, value: Any) -> Any:
        """Return a stated value; None for a long one."""
        if id(value) not in self._stated:
            self._stated[id(value)] = value if len(json.dumps(value)) <= MAX_VALUES else None
        return self._stated[id(value)]
