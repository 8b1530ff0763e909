"""Options of reasoning in a chat completion: variables of the chat template, and OpenAI's and others' own fields."""

from typing import Any

from msgspec import structs

from gateway.errors import invalid
from gateway.openai.schema import ChatBody
from protocol.request import TemplateOptions

SWITCHES = ("enable_thinking", "thinking")
"""The variables by which templates of different models are asked to reason or not."""


def template_options(body: ChatBody) -> TemplateOptions:
    """Return the variables for the chat template. Raises `RequestError` if two fields contradict each other."""
    given = body.chat_template_kwargs
    options: dict[str, Any] = {} if given is None else structs.asdict(given)
    for name in ("enable_thinking", "reasoning_effort"):
        value = getattr(body, name)
        if value is None:
            continue
        if options.get(name) not in (None, value):
            raise invalid(name, f"`{name}` and `chat_template_kwargs.{name}` differ; send one of them")
        options[name] = value
    if body.reasoning_effort == "none":
        # Most templates have a switch instead of an effort.
        for name in SWITCHES:
            if options.get(name):
                raise invalid("reasoning_effort", f"`reasoning_effort` `none` contradicts `{name}`; send one of them")
            options[name] = False
    return TemplateOptions(**options)
