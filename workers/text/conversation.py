"""Messages of a request as chat templates read them: dictionaries, in the style of the template."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from protocol.request import Message
from workers.text.image_content import ImageContent, content_of, pieces, text_part
from workers.text.message_style import (
    ID_CHARACTERS,
    OBSERVATION,
    RESULTS,
    MessageStyle,
    WriteCalls,
    call_message,
    reasoning_keys,
    result_within,
)
from workers.text.template_limits.single_calls import single_calls

ROLES = frozenset({"system", "user", "assistant", "tool"})
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class ArgumentsError(Exception):
    """Raised if the arguments of a tool call are not the text of a JSON object, or nested too deeply."""


def has_calls(messages: Sequence[Message]) -> bool:
    """There are tool calls, or results of them, among the messages."""
    return any(message.tool_calls or message.tool_call_id for message in messages)


def message_values(messages: Sequence[Message], style: MessageStyle) -> list[Any]:
    """Return the texts of messages as JSON values, in which control tokens can be marked.

    The keys and the usual roles, by which templates choose, are not among them, whatever control tokens a vocabulary
    has. Raises `ArgumentsError`.
    """
    names = _tool_names(messages)
    return [
        [
            "" if message.role in ROLES else message.role,
            pieces(message) if message.images else message.content,
            name,
            message.reasoning,
            _id(message.tool_call_id, style),
            [[_id(call.id, style), call.name, _arguments(call.arguments, style)] for call in message.tool_calls],
        ]
        for message, name in zip(messages, names, strict=True)
    ]


def turns(
    messages: Sequence[Message],
    values: Sequence[Any],
    style: MessageStyle,
    write: WriteCalls | None = None,
    images: ImageContent | None = None,
) -> list[dict[str, Any]]:
    """Return the messages for the template, with the texts of `values`. What a message does not have is undefined.

    `write` writes calls that are part of the text, and `images` is the form in which the template takes images. Raises
    `ArgumentsError`.
    """
    made: list[dict[str, Any]] = []
    if style.single_calls:
        messages, values = single_calls(messages, values)
    for message, (role, content, name, reasoning, call_id, calls) in zip(messages, values, strict=True):
        content = _content(content, images, plain=bool(calls) or (style.results_within and bool(call_id)))
        if style.results_within and call_id and made and made[-1].get("tool_calls"):
            made[-1].setdefault(RESULTS, []).append(result_within(name, content))
            continue
        if style.calls_as_text and calls:
            assert write is not None, "the style was found with it"
            try:
                written = write([(called, arguments) for _, called, arguments in calls])
            except RecursionError:
                raise ArgumentsError("the arguments of a tool call are nested too deeply") from None
            content, calls = "\n".join(filter(None, (content, written))), []
        if style.calls_as_messages and calls:
            made += [{"role": message.role, "content": content}] if content else []
            made += [call_message(called, arguments) for _, called, arguments in calls]
            continue
        role = OBSERVATION if style.calls_as_messages and call_id else role or message.role
        made.append(_turn(role, content, name, reasoning, call_id, calls, style))
    return made


def _content(content: Any, images: ImageContent | None, *, plain: bool) -> Any:
    """Return the content of a message: a text, or parts if it has images and the template takes these."""
    if images is None:
        return content
    if isinstance(content, list):
        return content_of(content, images, plain=plain)
    return [text_part(content)] if images.always and content and not plain else content


def _turn(
    role: str, content: str, name: str, reasoning: str, call_id: str, calls: list[Any], style: MessageStyle
) -> dict[str, Any]:
    if calls and not style.text_beside_calls:
        content = ""
    turn: dict[str, Any] = {"role": role, "content": content}
    if name:
        turn["name"] = name
    if call_id:
        turn["tool_call_id"] = call_id
    if reasoning and (style.reasoning_beside_text or not (calls and content)):
        turn |= reasoning_keys(reasoning)
    if calls:
        turn["content"] = content or (None if style.null_content else "")
        turn["tool_calls"] = [
            {"id": each, "type": "function", "function": {"name": called, "arguments": arguments}}
            for each, called, arguments in calls
        ]
    return turn


def _tool_names(messages: Sequence[Message]) -> Iterator[str]:
    """The name of each message. A result without one has the name of the tool whose call it answers."""
    known: dict[str, str] = {}
    for message in messages:
        yield message.name or known.get(message.tool_call_id, "")
        known |= {call.id: call.name for call in message.tool_calls}


def _arguments(text: str, style: MessageStyle) -> Any:
    try:
        decoded = _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ArgumentsError(f"the arguments of a tool call are not a JSON object: {error}") from error
    if style.calls_as_text and "\\" in text:
        return json.dumps(decoded, ensure_ascii=False)  # a control token that is escaped could not be marked
    return text if style.arguments == "text" else decoded


def _id(given: str, style: MessageStyle) -> str:
    """An id for the template. One that it may not take is replaced, by the same in every message and on every
    worker."""
    if not given or not style.fixed_ids or (len(given) == ID_CHARACTERS and given.isascii() and given.isalnum()):
        return given
    number = int.from_bytes(hashlib.sha256(given.encode("utf-8", "replace")).digest())
    digits = []
    for _ in range(ID_CHARACTERS):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)
