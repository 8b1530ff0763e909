"""Options of OpenAI's API that Baton lacks: taken where they change nothing, refused by name where they would."""

from typing import Any

from msgspec import Struct

from gateway.errors import RequestError
from protocol.errors import ErrorCode

OPTIONS: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "name": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "refusal": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_call_id": (),
    "tool_calls": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""The values of an option that ask for nothing; `null` always does."""


class Generation(Struct, kw_only=True):
    """The options of this kind that both endpoints know; the base of their bodies."""

    service_tier: Any = None
    store: Any = None


def refuse_set(body: Struct, at: str = "") -> None:
    """Raise `RequestError` for the first option of `OPTIONS` that `body` sets. `at` is the path before the name."""
    for name in body.__struct_fields__:
        nothing = OPTIONS.get(name)
        value = None if nothing is None else getattr(body, name)
        # Types count: 0 == False in Python.
        if value is None or any(type(value) is type(none) and value == none for none in nothing or ()):
            continue
        raise RequestError(ErrorCode.UNSUPPORTED, f"`{at}{name}` is not supported", field=at + name)
