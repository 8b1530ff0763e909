"""Options of OpenAI's API that Baton does not support: accepted while they change nothing, else refused by name."""

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
"""The values of each option that change nothing, besides `null`."""


class UnsupportedOptions(Struct, kw_only=True):
    """The options of this kind that both endpoints accept; the base of their bodies."""

    service_tier: Any = None
    store: Any = None


def refuse_set(body: Struct, at: str = "") -> None:
    """Raise `RequestError` for the first option of `OPTIONS` that `body` sets. `at` is the path before its name."""
    for name in body.__struct_fields__:
        neutral = OPTIONS.get(name)
        value = None if neutral is None else getattr(body, name)
        # Types count: 0 == False in Python.
        if value is None or any(type(value) is type(each) and value == each for each in neutral or ()):
            continue
        raise RequestError(ErrorCode.UNSUPPORTED, f"`{at}{name}` is not supported", field=at + name)
