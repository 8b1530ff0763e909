"""Options of OpenAI's API that Baton lacks: taken where they change nothing, refused by name where they would."""

from typing import Any

from msgspec import Struct

from gateway.errors import unsupported

OPTIONS: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "name": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "presence_penalty": (0, 0.0),
    "reasoning_effort": ("none",),
    "refusal": (),
    "repetition_penalty": (1, 1.0),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_call_id": (),
    "tool_calls": ([],),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""The values of an option that ask for nothing; `null` always does."""


class Generation(Struct, kw_only=True):
    """The options of this kind that both endpoints know; the base of their bodies."""

    frequency_penalty: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    presence_penalty: Any = None
    repetition_penalty: Any = None
    service_tier: Any = None
    store: Any = None


def refuse_set(body: Struct, at: str = "") -> None:
    """Raise `ApiError` for the first option of `OPTIONS` that `body` sets. `at` is the path before the name."""
    for name in body.__struct_fields__:
        nothing = OPTIONS.get(name)
        value = None if nothing is None else getattr(body, name)
        # Types count: 0 == False in Python, and `logprobs: 0` asks for something where `logprobs: false` does not.
        if value is None or any(type(value) is type(none) and value == none for none in nothing or ()):
            continue
        raise unsupported(at + name)
