"""Decodes JSON bodies into typed structs. A refusal names the field, in words that help the sender."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gateway.errors import RefusalCode, RequestError, invalid

Body = TypeVar("Body")

_AT = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*?)(?:\[\.\.\.\])?`$")
"""The path at which msgspec stopped; for a mapping that is the mapping itself, whether a key or a value is wrong."""
_FIELD = re.compile(r"^Object (?:contains unknown|missing required) field `(.*?)`(?: - at `\$.*`)?$", re.DOTALL)
"""The name of a field may itself have any characters."""
_INDEX = re.compile(r"\[[0-9.]*\]")
_NOT_IN_ENUM = ("Invalid enum value ", "Invalid value ")
_MOST_CHARACTERS = 2000
"""The part of a message that is searched. msgspec's have the whole unknown name or value, which can be megabytes."""


@dataclass(frozen=True, slots=True)
class Hints:
    """Details that msgspec's messages leave out."""

    takes: Mapping[str, str] = field(default_factory=dict)
    """The values of fields that take only a few, by the field's name or the end of its path, without indexes."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Fields that belong to the body of another path, with that path."""


NO_HINTS = Hints()


def decode_body(decoder: "msgspec.json.Decoder[Body]", raw: bytes, hints: Hints = NO_HINTS) -> Body:
    """Decode a whole body. Raises `RequestError`."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise refusal(str(error), hints) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = f"the body is not valid JSON: {str(error)[:200]}"
        raise RequestError(RefusalCode.INVALID_JSON, text) from error
    except RecursionError as error:
        raise RequestError(RefusalCode.INVALID_JSON, "the body is nested too deeply") from error


def _takes(hints: Hints, path: str) -> str | None:
    """The hint for a path, of the longest end of it that has one."""
    end = _INDEX.sub("", path)
    while end not in hints.takes and "." in end:
        end = end.partition(".")[2]
    return hints.takes.get(end)


def refusal(message: str, hints: Hints) -> RequestError:
    """The error for a body about which msgspec said `message`."""
    if len(message) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        message = message[:half] + message[-half:]
    at, name = _AT.search(message), _FIELD.match(message)
    path = at.group(1) if at else ""
    if name is not None:
        path = f"{path}.{name.group(1)}" if path else name.group(1)
    text = _AT.sub("", message)[:300]
    where = f"`{path[:100]}`"
    if message.startswith("Object contains unknown"):
        hint = f" here: it belongs to {hints.elsewhere[path]}" if path in hints.elsewhere else ""
        return invalid(path[:100], f"{where} is not a parameter that Baton knows{hint}", RefusalCode.UNKNOWN_PARAMETER)
    if message.startswith("Object missing required"):
        return invalid(path[:100], f"{where} is required")
    takes = _takes(hints, path)
    for start in _NOT_IN_ENUM if takes else ():
        if text.startswith(start):
            return invalid(path[:100], f"{where} takes {takes}, not {text.removeprefix(start)}")
    return invalid(path[:100] or None, f"{where}: {text}" if path else text)
