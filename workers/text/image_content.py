"""Content of messages with images, as a chat template takes it: a list of parts, or a text with placeholders.

Templates of vision models take the parts of OpenAI's messages and write a placeholder for each image themselves. Some
of them, as SmolVLM's, read no text that is not a part. Others take texts only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from protocol.request import Message
from workers.text.template_budget import TemplateError

_TEXT = "Sample text."


@dataclass(frozen=True, slots=True)
class ImageContent:
    """The form in which a template takes images."""

    placeholder: str
    """The text that it writes for an image."""
    parts: bool = False
    """It takes a list of parts."""
    always: bool = False
    """It takes nothing else, for text alone as well."""


def find_content(render: Callable[[Sequence[dict[str, Any]]], str], placeholder: str) -> ImageContent:
    """Return how a template takes images, by which `render` makes a prompt."""
    prompt = _try(render, [image_part(), text_part(_TEXT)])
    if prompt is None or prompt.count(placeholder) != 1 or _TEXT not in prompt or "'type'" in prompt:
        return ImageContent(placeholder)
    alone = _try(render, _TEXT)
    return ImageContent(placeholder, parts=True, always=alone is None or _TEXT not in alone)


def pieces(message: Message) -> list[str]:
    """Return the texts around the images of a message: one more than it has images."""
    ends = [0, *(place.at for place in message.images), len(message.content)]
    return [message.content[start:end] for start, end in pairwise(ends)]


def content_of(texts: Sequence[str], style: ImageContent, *, plain: bool) -> str | list[dict[str, str]]:
    """Return the content of a message with images between these texts; a `plain` text if it has to be one."""
    if plain or not style.parts:
        return style.placeholder.join(texts)
    parts = [text_part(texts[0])] if texts[0] else []
    for text in texts[1:]:
        parts.append(image_part())
        parts += [text_part(text)] if text else []
    return parts


def text_part(text: str) -> dict[str, str]:
    """Return a part of text."""
    return {"type": "text", "text": text}


def image_part() -> dict[str, str]:
    """Return the part of an image."""
    return {"type": "image"}


def _try(render: Callable[[Sequence[dict[str, Any]]], str], content: Any) -> str | None:
    try:
        return render([{"role": "user", "content": content}])
    except TemplateError:
        return None
