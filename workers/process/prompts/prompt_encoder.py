"""Encodes texts and chats: chat template, control tokens and tokenizer."""

import json
from collections.abc import Sequence
from typing import Any

from protocol.errors import ErrorCode
from protocol.request import ChatInput, EmbeddedInput, InfillInput, Input, Message, PairInput, TextInput
from workers.engine.prefix_match import PinnedPrefix
from workers.engine.request import EMBEDDINGS
from workers.process.prompts.images.image_prompts import ChatImages
from workers.process.prompts.pinned_prefix import PinnedPrefixes
from workers.process.prompts.refusal import PromptRefused, unsupported
from workers.text.control_tokens import ControlTokens
from workers.text.conversation import ArgumentsError, has_calls, message_values, turns
from workers.text.image_content import ImageContent, find_content
from workers.text.message_style import SAMPLE_TOOLS, MessageStyle, WriteCalls, find_style
from workers.text.template_budget import TemplateError
from workers.text.template_limits.described_tools import with_descriptions
from workers.text.tokenizer import ChatFormat, InfillFormat, Messages, Tokenizer, Tools

TEXTS = frozenset({"bad_words", "dry_sequence_breakers", "suffix"})
"""Request fields, besides the prompt, that have texts to tokenize."""
ADD_TOKENIZER = "serve the model with its tokenizer.json"
SEND_IDS = f"send token ids, to an endpoint that takes them, or {ADD_TOKENIZER}"


class PromptEncoder:
    """Turns prompts into tokens or text, for one model. What it keeps are facts about the model's chat template."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        context: int,
        write_calls: WriteCalls | None = None,
        placeholder: str = "",
    ) -> None:
        """Text that cannot fit into `context` tokens is refused before it is tokenized. `write_calls` writes calls in
        the model's format, for templates that drop them; `placeholder` is what the template writes for an image, of a
        model that takes any."""
        self._tokenizer = tokenizer
        self._write_calls = write_calls
        self._context = context
        self._placeholder = placeholder
        self._placeholders = ControlTokens([placeholder] if placeholder else ())
        self._content: ImageContent | None = None
        """The form in which the template takes images. Found when needed."""
        self._pinned = PinnedPrefixes(lambda source: self._rendered(source)[1:], self._encode_rendered)
        self._styles: dict[bool, MessageStyle | None] = {}
        """The shape of tool calls for the chat template, with tools in the request and without. Found when needed."""

    def tokens(self, source: Input, images: ChatImages | None = None, *, special: bool = True) -> tuple[int, ...]:
        """Return the tokens of a prompt, with an image token for each row of the `images` of a chat. `special` adds
        those that the model expects around a text. Raises `PromptRefused`."""
        if isinstance(source, TextInput):
            return self._encode(self.require("prompt"), source.text, "prompt", special=special)
        if isinstance(source, ChatInput):
            tokenizer, text, mark = self._rendered(source, images)
            characters = len(text) - (len(mark) * text.count(mark) if mark else 0)
            self._check_length(tokenizer, characters, "messages")
            return tuple(self._encode_rendered(text, mark))
        if isinstance(source, InfillInput):
            return tuple(self._infill(source).encode(source.prefix, source.suffix))
        if isinstance(source, EmbeddedInput):
            raise unsupported("rows of embeddings have no tokens", EMBEDDINGS)
        if isinstance(source, PairInput):
            raise unsupported("a pair of texts is scored, and is no prompt", "prompt")
        return source.tokens

    def pinned(
        self, source: ChatInput, tokens: Sequence[int], images: ChatImages | None = None
    ) -> tuple[PinnedPrefix, ...]:
        """Return the prefixes of a chat's prompt that are to be kept, of which these are the tokens (`tokens`)."""
        return self._pinned.of(source, tokens, lambda changed: self._rendered(changed, images)[1:])

    def boundaries(self, source: ChatInput, tokens: Sequence[int], messages: Sequence[int]) -> list[int]:
        """Return how many tokens of a chat's prompt come before the content of each of some messages, by their index; 0
        if that is not known."""
        return self._pinned.boundaries(source, tokens, messages)

    def _encode_rendered(self, text: str, mark: str) -> Sequence[int]:
        tokenizer = self.require("messages")
        return tokenizer.encode_marked(text, mark) if mark else tokenizer.encode(text, special=False)

    def text(self, source: Input) -> str:
        """Return the text of a prompt: a chat's by the template, and that of tokens without special ones. Raises
        `PromptRefused`."""
        if isinstance(source, TextInput):
            return source.text
        if isinstance(source, ChatInput):
            _, text, mark = self._rendered(source)
            return text.replace(mark, "") if mark else text
        if isinstance(source, InfillInput):
            return self._infill(source).text(source.prefix, source.suffix)
        if isinstance(source, EmbeddedInput):
            raise unsupported("rows of embeddings have no text", EMBEDDINGS)
        if isinstance(source, PairInput):
            raise unsupported("a pair of texts is scored, and is no prompt", "prompt")
        tokenizer = self.require("tokens", ADD_TOKENIZER)
        if (unknown := next((token for token in source.tokens if token >= tokenizer.vocab_size), None)) is not None:
            problem = f"token {unknown} is not in the vocabulary of {tokenizer.vocab_size} tokens"
            raise PromptRefused(ErrorCode.INVALID, problem, "tokens")
        return tokenizer.decode(source.tokens)

    def _infill(self, source: InfillInput) -> InfillFormat:
        """Return the format of fill-in-the-middle prompts. Raises `PromptRefused`."""
        tokenizer = self.require("suffix")
        if tokenizer.infill is None:
            raise unsupported("the model has no fill-in-the-middle tokens: leave suffix out", "suffix")
        self._check_length(tokenizer, len(source.prefix) + len(source.suffix), "prompt")
        return tokenizer.infill

    def _rendered(self, source: ChatInput, images: ChatImages | None = None) -> tuple[Tokenizer, str, str]:
        """Render a chat, with the text of `images` in place of their placeholders. The template writes out control
        tokens itself; those in messages are text, and marked in the result by the mark beside it, if there are any."""
        tokenizer = self.require("messages")
        chat = tokenizer.chat
        if chat is None:
            raise PromptRefused(ErrorCode.UNSUPPORTED, "the model has no chat template", "messages")
        tools = tool_list(source.tools_json)
        if tools and not chat.takes_tools:
            raise unsupported("the model's chat template does not support tools: leave `tools` out", "tools")
        style = self._style(chat, source.messages, with_tools=bool(tools))
        try:
            values, mark = tokenizer.mark_control_tokens([message_values(source.messages, style), tools])
            (texts, tools), own = self._mark_placeholders(source, values)
            messages = turns(source.messages, texts, style, self._write_calls, self._content_style(chat))
        except ArgumentsError as error:
            raise PromptRefused(ErrorCode.INVALID, str(error), "messages") from error
        except RecursionError:
            field, what = ("tools", "tools is") if tools else ("messages", "the arguments of a tool call are")
            raise PromptRefused(ErrorCode.INVALID, f"{what} nested too deeply", field) from None
        text = _render(chat, messages, tools, source, mark)
        return tokenizer, self._with_images(text, source, images, own), mark

    def _mark_placeholders(self, source: ChatInput, values: Any) -> tuple[Any, str]:
        """Mark placeholders in the texts of a chat with images, so that they are not taken for those of the template,
        whether or not they are control tokens."""
        return self._placeholders.mark(values) if source.images else (values, "")

    def _content_style(self, chat: ChatFormat) -> ImageContent | None:
        if self._placeholder and self._content is None:
            self._content = find_content(chat.render, self._placeholder)
        return self._content

    def _with_images(self, text: str, source: ChatInput, images: ChatImages | None, mark: str) -> str:
        """Return a rendered chat with the text of its images, and without the marks of other placeholders."""
        if not source.images or not self._placeholder:
            return text
        parts = text.split(self._placeholder)
        wanted = [place for message in source.messages for place in message.images]
        if len(parts) != len(wanted) + 1:
            problem = f"the model's chat template writes {len(parts) - 1} images of {len(wanted)}"
            raise unsupported(f"{problem}: leave those out that are not in a message of the user", "messages")
        texts = [self._placeholder] * len(wanted) if images is None else images.texts
        whole = parts[0] + "".join(image + part for image, part in zip(texts, parts[1:], strict=True))
        return whole.replace(mark, "") if mark else whole

    def _style(self, chat: ChatFormat, messages: Sequence[Message], *, with_tools: bool) -> MessageStyle:
        """Return the shape of these messages for the template. A template that drops calls is refused."""
        if not has_calls(messages):
            return MessageStyle()
        if with_tools not in self._styles:
            tools = SAMPLE_TOOLS if with_tools else None
            self._styles[with_tools] = find_style(lambda sample: chat.render(sample, tools), self._write_calls)
        style = self._styles[with_tools]
        if style is None:
            raise unsupported(
                "the model's chat template does not write tool calls: leave tool calls and their results out",
                "messages",
            )
        return style

    def _encode(self, tokenizer: Tokenizer, text: str, field: str, *, special: bool) -> tuple[int, ...]:
        self._check_length(tokenizer, len(text), field)
        return tuple(tokenizer.encode(text, special=special))

    def _check_length(self, tokenizer: Tokenizer, characters: int, field: str) -> None:
        if characters > self._context * tokenizer.longest_token:
            problem = f"a prompt of {characters} characters cannot fit into a context of {self._context} tokens"
            raise PromptRefused(ErrorCode.CONTEXT, problem, field)

    def require(self, field: str, advice: str = SEND_IDS) -> Tokenizer:
        """Return the tokenizer, which a field of the request needs. Raises `PromptRefused` if the model has none, with
        the `advice` unless the field may be left out."""
        if self._tokenizer is None:
            advice = f"leave `{field}` out" if field in TEXTS else advice
            raise PromptRefused(ErrorCode.UNSUPPORTED, f"the model has no tokenizer: {advice}", field)
        return self._tokenizer


def _render(chat: ChatFormat, messages: Messages, tools: Tools | None, source: ChatInput, mark: str) -> str:
    try:
        return chat.render(messages, tools, now=source.now, options=source.options)
    except TemplateError as error:
        if (described := with_descriptions(tools)) is not None:
            return _render(chat, messages, described, source, mark)
        text = str(error).replace(mark, "") if mark else str(error)
        raise PromptRefused(ErrorCode.TEMPLATE, text, "messages") from error


def tool_list(text: str) -> Sequence[dict[str, Any]] | None:
    """Return the tools of a chat, None if it has none. Raises `PromptRefused`."""
    if not text:
        return None
    try:
        tools = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptRefused(ErrorCode.INVALID, f"tools is not JSON: {error}", "tools") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise PromptRefused(ErrorCode.INVALID, "tools is not a list of objects", "tools")
    return tools or None
