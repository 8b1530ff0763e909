"""Shape of tool calls that a chat template takes, found by rendering a sample conversation.

Published templates differ. Most take the arguments of a call as an object, which they encode or iterate over; some take
a text, which they join to others, and fail with an object. Some fail without a text beside the calls, others write a
second turn for an empty one. Templates of Mistral models take ids of nine characters only, or no shorter ones. Those of
Gemma 4 take results within the message of the calls. A few drop calls: GLM-4-0414's takes each as a message with
`metadata`, and for the others they are written into the text. That of gpt-oss takes one call a message.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter
from typing import Any, Literal

from workers.text.template_budget import TemplateError

Turns = Sequence[dict[str, Any]]
Arguments = Literal["object", "text"]
WriteCalls = Callable[[Sequence[tuple[str, str]]], str]
"""Writes calls, each a name and the text of its arguments, in the model's own format."""
KINDS: tuple[Arguments, ...] = ("object", "text")

RESULTS = "tool_responses"
"""The key of results within a message."""
OBSERVATION = "observation"
"""The role of results where calls are messages of their own."""
ID_CHARACTERS = 9
"""Length of ids for templates that do not take every id."""
_SECOND_CALL = "another_call"
_CALL, _KEY, _VALUE, _RESULT, _TEXT = "sample_call", "sample_key", "sample value", "A result.", "Sample text."
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
    text_beside_calls: bool = True
    """A message with calls may have a text; otherwise the template would write it after the results."""
    results_within: bool = False
    """The results of calls are in the message that has the calls."""
    calls_as_text: bool = False
    """Calls are part of the text, in the model's own format."""
    calls_as_messages: bool = False
    """Each call is a message with the name in `metadata` and the arguments as its content. The role of results is
    `observation`."""
    single_calls: bool = False
    """A message has one call, as the template shows the first alone: further ones are messages of their own, each with
    its result behind it."""


def find_style(render: Callable[[Turns], str], write: WriteCalls | None = None) -> MessageStyle | None:
    """Return the style of a template, by which `render` makes a prompt; None if the template drops tool calls.

    Calls that it drops are written into the text by `write`, if it is known how the model writes them.
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
            best = replace(best, results_within=_takes_results_within(render, best))
            said = _try(render, best, content=_TEXT, reasoning="Reasoning.")
            late = said is not None and -1 < said.rfind(_RESULT) < said.rfind(_TEXT)
            several = _try(render, best, second=True)
            return replace(
                best,
                reasoning_beside_text=said is not None,
                text_beside_calls=not late,
                single_calls=several is not None and _shows_call(several) and _SECOND_CALL not in several,
            )
    if not rendered:
        return MessageStyle()
    return None if write is None else _style_of_dropped_calls(render, write)


def _style_of_dropped_calls(render: Callable[[Turns], str], write: WriteCalls) -> MessageStyle | None:
    for style in (MessageStyle("text", calls_as_messages=True), MessageStyle("text", calls_as_text=True)):
        prompt = _try(render, style, content=write([(_CALL, _arguments(style))]) if style.calls_as_text else "")
        if prompt is not None and _shows_call(prompt) and _RESULT in prompt:
            return style
    return None


def _takes_results_within(render: Callable[[Turns], str], style: MessageStyle) -> bool:
    prompt = _try(render, replace(style, results_within=True))
    return prompt is not None and _RESULT in prompt


def _try(
    render: Callable[[Turns], str],
    style: MessageStyle,
    *,
    content: str = "",
    reasoning: str = "",
    second: bool = False,
) -> str | None:
    """Render a sample with a call, and with a `second` one beside it. None if the template fails."""
    call_id, second_id = ("x" * ID_CHARACTERS, "y" * ID_CHARACTERS) if style.fixed_ids else ("c1", "c2")
    calls = [(call_id, _CALL, _arguments(style))]
    if second:
        calls.append((second_id, _SECOND_CALL, _arguments(style, _SECOND_CALL)))
    calling: dict[str, Any] = {"role": "assistant", "content": content or (None if style.null_content else "")}
    if style.calls_as_messages:
        calling = call_message(_CALL, _arguments(style))
    elif not style.calls_as_text:
        calling["tool_calls"] = [
            {"id": each, "type": "function", "function": {"name": name, "arguments": arguments}}
            for each, name, arguments in calls
        ]
    if reasoning:
        calling |= reasoning_keys(reasoning)
    role = OBSERVATION if style.calls_as_messages else "tool"
    results = [{"role": role, "content": _RESULT, "tool_call_id": call_id, "name": _CALL}]
    if style.results_within:
        calling[RESULTS], results = [result_within(_CALL, _RESULT)], []
    try:
        return render([{"role": "user", "content": "Hello."}, calling, *results])
    except TemplateError:
        return None


def _arguments(style: MessageStyle, value: str = _VALUE) -> Any:
    return {_KEY: value} if style.arguments == "object" else f'{{"{_KEY}": "{value}"}}'


def _shows_call(text: str) -> bool:
    """The prompt has the call, with its arguments neither encoded twice nor as Python writes an object."""
    whole = all(part in text for part in (_CALL, _KEY, _VALUE))
    return whole and f'\\"{_KEY}' not in text and f"'{_KEY}'" not in text


def call_message(name: str, arguments: str) -> dict[str, Any]:
    """Return a call as a message of its own."""
    return {"role": "assistant", "metadata": name, "content": arguments}


def result_within(name: str, content: str) -> dict[str, str]:
    """Return the result of a call as it is within the message of the call."""
    return {"name": name, "response": content}


def reasoning_keys(reasoning: str) -> dict[str, str]:
    """Return the reasoning under the names by which templates read it; `thinking` is that of gpt-oss, and `tool_plan`
    that of Command A."""
    return dict.fromkeys(("reasoning_content", "reasoning", "thinking", "tool_plan"), reasoning)
