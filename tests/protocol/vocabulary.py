"""Frames, nested structs and bounds of the wire protocol, read from the code as plain text."""

import inspect
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
from msgspec import inspect as types

from protocol.commands import Command
from protocol.events import Event

COMMANDS: tuple[type[msgspec.Struct], ...] = get_args(Command)
EVENTS: tuple[type[msgspec.Struct], ...] = get_args(Event)


def structs() -> list[type[msgspec.Struct]]:
    """Return every frame and every nested struct once, frames first."""
    found: dict[type[msgspec.Struct], None] = dict.fromkeys(COMMANDS + EVENTS)
    waiting = list(found)
    while waiting:
        for field in fields(waiting.pop(0)):
            for inner in _walk(field.type):
                if isinstance(inner, types.StructType) and inner.cls not in found:
                    found[inner.cls] = None
                    waiting.append(inner.cls)
    return list(found)


def fields(struct: type[msgspec.Struct]) -> tuple[types.Field, ...]:
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    return info.fields


def tag(struct: type[msgspec.Struct]) -> str | None:
    info = types.type_info(struct)
    assert isinstance(info, types.StructType)
    return None if info.tag is None else str(info.tag)


def type_text(info: types.Type) -> str:
    """Return the type of a field without its bounds: `int`, `list of Delta`, `TextInput or TokensInput`, `int or
    nil`."""
    match info:
        case types.UnionType(types=members):
            return " or ".join(type_text(member) for member in members)
        case types.VarTupleType(item_type=item):
            return f"list of {type_text(item)}"
        case types.StructType(cls=cls) | types.EnumType(cls=cls):
            return cls.__name__
        case types.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in sorted(values, key=str))
        case types.NoneType():
            return "nil"
        case types.IntType():
            return "int"
        case types.FloatType():
            return "float"
        case types.StrType():
            return "str"
        case types.BytesType():
            return "bin"
        case types.BoolType():
            return "bool"
    raise TypeError(f"no text for {info}")


def bound_text(info: types.Type) -> str:
    """Return the bounds of a field as text; empty if the type itself is the bound."""
    match info:
        case types.UnionType(types=members):
            return ", ".join(text for member in members if (text := bound_text(member)))
        case types.VarTupleType(item_type=item):
            text = _span(info.min_length, info.max_length, "items")
            inner = bound_text(item)
            return f"{text}, each {inner}" if inner else text
        case types.StrType():
            return _span(info.min_length, info.max_length, "characters")
        case types.BytesType():
            return _span(info.min_length, info.max_length, "bytes")
        case types.IntType(ge=low, le=high):
            return f"{low} to {high}"
        case types.FloatType(gt=above, ge=low, le=high):
            return f"above {above}, at most {high}" if above is not None else f"{low} to {high}"
    return ""


def default_text(field: types.Field) -> str:
    if field.required:
        return "required"
    return {"()": "empty", "''": "empty", "b''": "empty", "None": "nil"}.get(repr(field.default), repr(field.default))


def docstring(struct: type[msgspec.Struct]) -> str:
    return inspect.cleandoc(struct.__doc__ or "")


def _span(low: int | None, high: int | None, what: str) -> str:
    return f"{low} to {high} {what}" if low else f"at most {high} {what}"


def _walk(info: Any) -> Iterator[types.Type]:
    yield info
    if isinstance(info, types.UnionType):
        for member in info.types:
            yield from _walk(member)
    elif isinstance(info, types.VarTupleType):
        yield from _walk(info.item_type)
