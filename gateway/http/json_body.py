"""Decodes JSON bodies into typed structs. A refusal names the field, in words that help the sender."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_origin

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
_LONGEST_TYPO = 64
"""Characters of a name to which a near one is searched."""
_NEAR = 0.75
"""The least ratio of `difflib` between an unknown name and the one that is suggested."""
_SAME = (
    ("documents", "docs", "passages", "texts"),
    ("max_tokens", "max_output_tokens", "max_completion_tokens", "max_new_tokens", "n_predict", "num_predict"),
    ("prompt", "input", "content", "texts"),
    ("repetition_penalty", "repeat_penalty"),
    ("response_format", "format"),
    ("stop", "stop_sequences"),
)
"""Fields of the same meaning in several APIs."""


@dataclass(frozen=True, slots=True)
class Hints:
    """Details that msgspec's messages leave out."""

    takes: Mapping[str, str] = field(default_factory=dict)
    """The values of fields that take only a few, by the field's name or the end of its path, without indexes."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Fields that belong to the body of another path, with that path."""


NO_HINTS = Hints()
_CURL_TYPE = b"application/x-www-form-urlencoded"
_PAGE_HEADERS = frozenset({b"origin", b"referer", b"sec-fetch-mode", b"sec-fetch-site"})
"""Headers that browsers add to the requests of pages."""
_NOT_JSON = "the content-type must be application/json; for curl, -H 'Content-Type: application/json'"


def check_json_type(headers: Mapping[bytes, bytes], *, curl_type: bool = False) -> None:
    """Raise `RequestError` unless the headers, whose names are in lower case, declare a JSON body.

    A page of another origin can send other types without a preflight request. So with `curl_type` the type that curl
    gives a body by default is accepted from programs alone.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind == b"application/json" or (curl_type and kind == _CURL_TYPE and headers.keys().isdisjoint(_PAGE_HEADERS)):
        return
    raise RequestError(RefusalCode.UNSUPPORTED_MEDIA_TYPE, _NOT_JSON)


def decode_body(decoder: "msgspec.json.Decoder[Body]", raw: bytes, hints: Hints = NO_HINTS) -> Body:
    """Decode a whole body. Raises `RequestError`."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise refusal(str(error), hints, decoder.type) from error
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


def _structs(annotation: Any, *, items: bool = True) -> Iterator[type[msgspec.Struct]]:
    """The structs in a type: it itself, those of a union, and those of the `items` of a list."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    if items or get_origin(annotation) not in (tuple, list, dict):
        for part in get_args(annotation):
            yield from _structs(part, items=items)


def _suggestion(body: Any, path: str) -> str:
    """The field of a body of type `body` that an unknown one at `path` may have been meant for: one of a similar name,
    of the same meaning in another API, or of the same name in a section. Empty for none."""
    *sections, name = _INDEX.sub("", path).split(".")
    if len(name) > _LONGEST_TYPO:
        return ""
    structs = list(_structs(body))
    for section in sections:
        structs = [inner for own, each in _sections(structs) if own == section for inner in each]
    known = {each for struct in structs for each in struct.__struct_encode_fields__}
    if near := get_close_matches(name.lower(), sorted(known), 1, _NEAR):
        return near[0]
    same = (each for group in _SAME if name in group for each in group if each in known)
    inside = (
        f"{own}.{name}"
        for own, each in _sections(structs, items=False)
        if any(name in inner.__struct_encode_fields__ for inner in each)
    )
    return next(same, "") or next(inside, "")


def _sections(
    structs: Sequence[type[msgspec.Struct]], *, items: bool = True
) -> Iterator[tuple[str, Sequence[type[msgspec.Struct]]]]:
    """The fields of structs, each with the structs that it, or with `items` those of a list, may be."""
    for struct in structs:
        for each in msgspec.structs.fields(struct):
            yield each.encode_name, list(_structs(each.type, items=items))


def refusal(message: str, hints: Hints, body: Any = None) -> RequestError:
    """The error for a body of type `body` about which msgspec said `message`."""
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
        if not hint and (near := _suggestion(body, path)):
            hint = f": did you mean `{near}`?"
        return invalid(path[:100], f"{where} is not a parameter that Baton knows{hint}", RefusalCode.UNKNOWN_PARAMETER)
    if message.startswith("Object missing required"):
        return invalid(path[:100], f"{where} is required")
    takes = _takes(hints, path)
    for start in _NOT_IN_ENUM if takes else ():
        if text.startswith(start):
            return invalid(path[:100], f"{where} takes {takes}, not {text.removeprefix(start)}")
    return invalid(path[:100] or None, f"{where}: {text}" if path else text)
