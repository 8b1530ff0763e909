"""Shape of tool calls that a chat template takes, found by rendering a sample conversation.

Published templates differ. Most take the arguments of a call as an object, which they encode or iterate over; some take
a text, which they join to others, and fail with an object. Some fail without a text beside the calls, others write a
second turn for an empty one. Templates of Mistral models take ids of nine characters only, or no shorter ones. A few
drop calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter
from typing import Any, Literal

from workers.text.template_budget import TemplateError

Turns = Sequence[dict[str, Any]]
Arguments = Literal["object", "text"]
KINDS: tuple[Arguments, ...] = ("object", "text")

ID_CHARACTERS = 9
"""Length of ids for templates that do not take every id."""
_CALL, _KEY, _VALUE = "sample_call", "sample_key", "sample value"
SAMPLE_TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "sample_tool",
            "description": "A tool.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "A text."}},
                "required": ["text"],
            },
        },
    },
)
"""Tools for the sample. They have none of the words by which its call is found in the prompt."""


@dataclass(frozen=True, slots=True)
class MessageStyle:
    """Shape of messages with tool calls for one template."""

    arguments: Arguments = "object"
    null_content: bool = False
    """A message without text has the content None beside its calls; otherwise an empty text."""
    fixed_ids: bool = False
    """Ids have `ID_CHARACTERS` letters and digits."""
    reasoning_beside_text: bool = True
    """A message with calls may have both text and reasoning."""


def find_style(render: Callable[[Turns], str]) -> MessageStyle | None:
    """Return the style of a template, by which `render` makes a prompt; None if the template drops tool calls.

    A template that fails with every style has the default one, so that a request gets the template's own error.
    """
    rendered = False
    for fixed_ids, arguments in product((False, True), KINDS):
        prompts: list[tuple[int, MessageStyle]] = []
        for null_content in (False, True):
            style = MessageStyle(arguments, null_content, fixed_ids)
            prompt = _try(render, style)
            rendered = rendered or prompt is not None
            if prompt is not None and _shows_call(prompt):
                prompts.append((len(prompt), style))
        if prompts:
            # The longer prompt has a turn for the empty text, or the word None for the missing one.
            best = min(prompts, key=itemgetter(0))[1]
            return replace(best, reasoning_beside_text=_takes_reasoning_beside_text(render, best))
    return None if rendered else MessageStyle()


def _takes_reasoning_beside_text(render: Callable[[Turns], str], style: MessageStyle) -> bool:
    return _try(render, style, content="Text.", reasoning="Reasoning.") is not None


def _try(render: Callable[[Turns], str], style: MessageStyle, *, content: str = "", reasoning: str = "") -> str | None:
    call_id = "x" * ID_CHARACTERS if style.fixed_ids else "c1"
    arguments = {_KEY: _VALUE} if style.arguments == "object" else f'{{"{_KEY}": "{_VALUE}"}}'
    call = {"id": call_id, "type": "function", "function": {"name": _CALL, "arguments": arguments}}
    calling = {"role": "assistant", "content": content or (None if style.null_content else ""), "tool_calls": [call]}
    if reasoning:
        calling |= reasoning_keys(reasoning)
    result = {"role": "tool", "content": "A result.", "tool_call_id": call_id, "name": _CALL}
    try:
        return render([{"role": "user", "content": "Hello."}, calling, result])
    except TemplateError:
        return None


def _shows_call(text: str) -> bool:
    """The prompt has the call, with its arguments neither encoded twice nor as Python writes an object."""
    whole = all(part in text for part in (_CALL, _KEY, _VALUE))
    return whole and f'\\"{_KEY}' not in text and f"'{_KEY}'" not in text


def reasoning_keys(reasoning: str) -> dict[str, str]:
    """Return the reasoning under the names by which templates read it; `thinking` is that of gpt-oss."""
    return dict.fromkeys(("reasoning_content", "reasoning", "thinking"), reasoning)
