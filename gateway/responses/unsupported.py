"""Options of the Responses API that Baton does not support: accepted while they change nothing, else refused by
name."""

from functools import cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from gateway.errors import RequestError, invalid
from gateway.generation.unsupported_options import unsupported
from protocol.errors import ErrorCode

RESPONSES_OPTIONS: dict[str, tuple[Any, ...]] = {
    "access_programs": ({},),
    "allowed_callers": ([], ["direct"]),
    "async": (False,),
    "background_options": ({}, {"completion_window": "soonest"}),
    "caller": ({"type": "direct"},),
    "context_management": ([],),
    "conversation": (),
    "defer_loading": (False,),
    "image": ({}, {"context_compression": "auto"}, {"context_compression": "disabled"}),
    "moderation": (),
    "namespace": ("",),
    "output_schema": (),
    "prompt": (),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
}
"""The values of each option that change nothing, besides `null`."""

TOOLS = ("function",)
ITEMS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
PARTS = ("input_text", "input_image", "output_text", "refusal", "reasoning_text", "summary_text")
_CONTENT = "content is text and images here"


def refuse_options(body: Struct, at: str = "") -> None:
    """Raise `RequestError` for the first option of `RESPONSES_OPTIONS` that `body` sets. `at` is the path before its
    name."""
    for attribute, name in _options_of(type(body)):
        value = getattr(body, attribute)
        if value is not None and value not in RESPONSES_OPTIONS[name]:
            raise _unsupported(f"{at}{name}", unsupported(f"{at}{name}", RESPONSES_OPTIONS[name]))


@cache
def _options_of(body: type[Struct]) -> tuple[tuple[str, str], ...]:
    """The fields of a body that are options of this kind, each with its name in JSON."""
    return tuple((field.name, field.encode_name) for field in fields(body) if field.encode_name in RESPONSES_OPTIONS)


def unsupported_kind(raw: bytes) -> RequestError | None:
    """The refusal of a body that could not be decoded because it has a tool, an item or a part of an unsupported kind,
    whose other fields are unknown as well. None for any other body."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    for index, tool in enumerate(_items(body.get("tools"))):
        if (refusal := _kind(tool, f"tools[{index}]", TOOLS, "functions are the only tools here")) is not None:
            return refusal
    if (refusal := _kind(body.get("tool_choice"), "tool_choice", TOOLS, "it names one function")) is not None:
        return refusal
    for index, item in enumerate(_items(body.get("input"))):
        at = f"input[{index}]"
        if (refusal := _kind(item, at, ITEMS, f"items are {', '.join(ITEMS)}")) is not None:
            return refusal
        for field in ("content", "output", "summary"):
            parts = item.get(field) if isinstance(item, dict) else None
            for number, part in enumerate(_items(parts)):
                if (refusal := _kind(part, f"{at}.{field}[{number}]", PARTS, _CONTENT)) is not None:
                    return refusal
    return None


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _kind(value: Any, at: str, known: tuple[str, ...], hint: str) -> RequestError | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind in known:
        return None
    return _unsupported(f"{at}.type", f"`{at}.type` {kind[:64]!r} is not supported: {hint}")


def _unsupported(field: str, text: str) -> RequestError:
    return invalid(field, text, ErrorCode.UNSUPPORTED)
