"""Options of an API that Baton does not support: accepted while they change nothing, else refused by name."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gateway.errors import RequestError
from protocol.errors import ErrorCode

NeutralValues = Mapping[str, tuple[Any, ...]]
"""The values of each option that change nothing, besides `null`."""
NONE: Mapping[str, str] = {}


def refuse_options(
    body: Struct, names: Iterable[str], neutral: NeutralValues, at: str = "", counterparts: Mapping[str, str] = NONE
) -> None:
    """Raise `RequestError` for the first of these fields that `body` sets to a value which is not in `neutral`. `at` is
    the path before its name. `counterparts`: what there is in place of fields."""
    for name in names:
        value = getattr(body, name)
        if value is not None and not any(_equal(value, each) for each in neutral[name]):
            text = unsupported(at + name, neutral[name], counterparts.get(name, ""))
            raise RequestError(ErrorCode.UNSUPPORTED, text, field=at + name)


def unsupported(path: str, neutral: Iterable[Any], counterpart: str = "") -> str:
    """Return the sentence about an option at a path, with the values that are accepted, or what there is instead."""
    if counterpart:
        return f"`{path}` is not supported; {counterpart}"
    accepted = " or ".join(msgspec.json.encode(each).decode() for each in neutral)
    return f"`{path}` is not supported; leave it out" + (f", or send {accepted}" if accepted else "")


def _equal(value: Any, neutral: Any) -> bool:
    """Equal in JSON: 1.0 is 1, and unlike in Python `true` is not."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
