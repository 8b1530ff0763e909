"""Descriptions of the values that a setting or an option may have, for error messages."""

import math
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect
from pydantic.fields import FieldInfo

MAX_SHOWN = 60
"""Characters of a wrong value that an error shows."""
WORDS_OF_SWITCHES = "true or false"


def of_setting(field: FieldInfo) -> str:
    """Describe the values of a setting."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and extra.get("allowed"):
        return str(extra["allowed"])
    bounds = {name: getattr(each, name) for each in field.metadata for name in _BOUNDS if hasattr(each, name)}
    kind = field.annotation
    if type(None) in get_args(kind):  # a setting that may be left out
        kind = next(each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        return "a list of texts"
    if kind is bool:
        return WORDS_OF_SWITCHES
    if kind in (int, float):
        return number(kind, bounds.get("ge"), bounds.get("le"))
    return text(bounds.get("min_length"), bounds.get("max_length"))


def of_type(kind: Any) -> str:
    """Describe the values of the type of a field on the wire."""
    return _describe(inspect.type_info(kind))


def number(kind: Any, low: float | None = None, high: float | None = None, *, above: float | None = None) -> str:
    """Describe whole numbers, or any numbers, within bounds. `above` is a lower bound that is not allowed itself."""
    name = "a whole number" if kind is int else "a number"
    if above is not None:
        return f"{name} above {above:g}" + ("" if high is None else f" and up to {_plain(high)}")
    if low is not None and high is not None:
        return f"{name} from {_plain(low)} to {_plain(high)}"
    return name if low is None else f"{name} of {_plain(low)} or more"


def text(shortest: int | None = None, longest: int | None = None) -> str:
    """Describe texts by their length in characters."""
    if shortest and longest:
        return f"a text of {shortest} to {longest} characters"
    if longest:
        return f"a text of {longest} characters or fewer"
    return "a text that is not empty" if shortest else "a text"


def shown(value: Any) -> str:
    """Return a wrong value as an error shows it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list | tuple):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of many digits"
    text = repr(value) if isinstance(value, str | int | float) else str(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(str(value))} characters)"


_BOUNDS = ("ge", "le", "min_length", "max_length")


def _plain(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else f"{value:g}"


def _describe(info: inspect.Type) -> str:
    match info:
        case inspect.UnionType(types=types):
            return _describe(next(each for each in types if not isinstance(each, inspect.NoneType)))
        case inspect.IntType():
            return number(int, info.ge, info.le)
        case inspect.FloatType():
            return number(float, info.ge, info.le, above=info.gt)
        case inspect.StrType():
            return text(info.min_length, info.max_length)
        case inspect.VarTupleType(item_type=item, max_length=most):
            return f"at most {most} values, each {_describe(item)}" if most else f"values, each {_describe(item)}"
        case inspect.BoolType():
            return WORDS_OF_SWITCHES
    raise TypeError(f"no description of {info}: {msgspec.__name__} has more kinds of types than options use")
