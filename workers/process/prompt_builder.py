"""Builds the prompt of a `Submit`: chat template, tokenizer, and the text that was delivered before.

The result depends on the frame alone, so prompts can be built on any thread, one at a time.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.request import ChatInput, Input, Message, TextInput
from workers.text.conversation import ArgumentsError, has_calls, message_values, turns
from workers.text.detokenizer import IncrementalDetokenizer
from workers.text.message_style import SAMPLE_TOOLS, MessageStyle, find_style
from workers.text.template_budget import TemplateError
from workers.text.tokenizer import ChatFormat, Messages, Tokenizer, Tools

CHARACTERS_PER_MESSAGE = 32
"""Characters to tokenize that cost as much as rendering one message, at least."""
CHARACTERS_PER_TOKEN = 4
"""Characters to tokenize that cost as much as detokenizing one resumed token."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """Prompt of a request for the engine."""

    tokens: tuple[int, ...]
    text: IncrementalDetokenizer | None
    """Detokenizer that has consumed the resumed tokens, whose text the client has. None without a tokenizer."""
    eos: frozenset[int]


class PromptRefused(Exception):
    """Raised by `build` for an invalid request. `field` is the invalid field."""

    def __init__(self, code: ErrorCode, text: str, field: str) -> None:
        super().__init__(text)
        self.code = code
        self.field = field


PromptResult = TokenizedPrompt | BaseException
"""A prompt, or the exception of its build; a panic of Rust code is no `Exception`."""


def build_or_error(make: Callable[[Submit], TokenizedPrompt], submit: Submit) -> PromptResult:
    """Build a prompt, or return the exception: a bug in text code must end that request only."""
    try:
        return make(submit)
    except BaseException as error:  # noqa: BLE001  see `PromptResult`; nothing is awaited here, so no cancellation is swallowed
        return error


def tokenize_cost(submit: Submit) -> int:
    """Estimate the cost of building a prompt, in characters of text to tokenize: about 1 us each for a model's
    tokenizer."""
    source, resumed = submit.input, CHARACTERS_PER_TOKEN * len(submit.resume)
    if isinstance(source, TextInput):
        return resumed + len(source.text)
    if isinstance(source, ChatInput):
        characters = len(source.tools_json) + sum(map(_characters, source.messages))
        return resumed + characters + CHARACTERS_PER_MESSAGE * len(source.messages)
    return resumed


def _characters(message: Message) -> int:
    calls = sum(len(call.id) + len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.name) + len(message.reasoning) + len(message.tool_call_id) + calls


class PromptBuilder:
    """Builds prompts for one model. What it keeps are facts about the model's chat template."""

    def __init__(self, tokenizer: Tokenizer | None, context: int, eos_ids: frozenset[int] = frozenset()) -> None:
        """Text that cannot fit into `context` tokens is refused before it is tokenized. `eos_ids` end the answers of a
        model without a tokenizer."""
        self._tokenizer = tokenizer
        self._context = context
        self._eos_ids = eos_ids if tokenizer is None else tokenizer.eos_ids
        self._styles: dict[bool, MessageStyle | None] = {}
        """The shape of tool calls for the chat template, with tools in the request and without. Found when needed."""

    def build(self, submit: Submit) -> TokenizedPrompt:
        """Build the prompt of a request. Raises `PromptRefused` for an invalid request."""
        tokens = self._tokens(submit.input)
        text = self._text(submit, tokens)
        eos = frozenset() if submit.limits.ignore_eos else self._eos_ids
        for token in submit.resume:
            # The client has this text; what was held back of it is sent with the next token.
            if text is not None and token not in eos:
                text.push(token)
        return TokenizedPrompt(tokens, text, eos)

    def _tokens(self, source: Input) -> tuple[int, ...]:
        if isinstance(source, TextInput):
            return self._encode(self._require_text("prompt"), source.text, "prompt", special=True)
        if isinstance(source, ChatInput):
            tokenizer = self._require_text("messages")
            if tokenizer.chat is None:
                raise PromptRefused(ErrorCode.UNSUPPORTED, "the model has no chat template", "messages")
            return self._encode_chat(tokenizer, tokenizer.chat, source)
        return source.tokens

    def _encode_chat(self, tokenizer: Tokenizer, chat: ChatFormat, source: ChatInput) -> tuple[int, ...]:
        """Render and encode a chat. The template writes out control tokens itself; those in messages are text."""
        tools = _tools(source.tools_json)
        if tools and not chat.takes_tools:
            raise _unsupported("the model's chat template does not support tools: leave tools out", "tools")
        style = self._style(chat, source.messages, with_tools=bool(tools))
        try:
            (texts, tools), mark = tokenizer.mark_control_tokens([message_values(source.messages, style), tools])
        except ArgumentsError as error:
            raise PromptRefused(ErrorCode.INVALID, str(error), "messages") from error
        except RecursionError:
            field = "tools" if tools else "messages"
            raise PromptRefused(ErrorCode.INVALID, f"{field} is nested too deeply", field) from None
        messages = turns(source.messages, texts, style)
        text = _render(chat, messages, tools, source, mark)
        if not mark:
            return self._encode(tokenizer, text, "messages", special=False)
        self._check_length(tokenizer, len(text) - len(mark) * text.count(mark), "messages")
        return tuple(tokenizer.encode_marked(text, mark))

    def _style(self, chat: ChatFormat, messages: Sequence[Message], *, with_tools: bool) -> MessageStyle:
        """Return the shape of these messages for the template. A template that drops calls is refused."""
        if not has_calls(messages):
            return MessageStyle()
        if with_tools not in self._styles:
            tools = SAMPLE_TOOLS if with_tools else None
            self._styles[with_tools] = find_style(lambda sample: chat.render(sample, tools))
        style = self._styles[with_tools]
        if style is None:
            raise _unsupported(
                "the model's chat template does not write tool calls: leave tool calls and their results out",
                "messages",
            )
        return style

    def _encode(self, tokenizer: Tokenizer, text: str, field: str, *, special: bool) -> tuple[int, ...]:
        self._check_length(tokenizer, len(text), field)
        return tuple(tokenizer.encode(text, special=special))

    def _check_length(self, tokenizer: Tokenizer, characters: int, field: str) -> None:
        if characters > self._context * tokenizer.longest_token:
            problem = f"{field} of {characters} characters cannot fit into a context of {self._context} tokens"
            raise PromptRefused(ErrorCode.CONTEXT, problem, field)

    def _text(self, submit: Submit, prompt: tuple[int, ...]) -> IncrementalDetokenizer | None:
        if self._tokenizer is None:
            if submit.limits.stop:
                raise PromptRefused(
                    ErrorCode.UNSUPPORTED, "the model has no tokenizer, which stop strings need: leave stop out", "stop"
                )
            return None
        # An answer in a chat starts a new text; any other continues the text of its prompt.
        context = () if isinstance(submit.input, ChatInput) else prompt
        return IncrementalDetokenizer(self._tokenizer, context, submit.limits.stop)

    def _require_text(self, field: str) -> Tokenizer:
        if self._tokenizer is None:
            raise PromptRefused(
                ErrorCode.UNSUPPORTED, "the model has no tokenizer: give the prompt as token ids", field
            )
        return self._tokenizer


def _render(chat: ChatFormat, messages: Messages, tools: Tools | None, source: ChatInput, mark: str) -> str:
    try:
        return chat.render(messages, tools, now=source.now, options=source.options)
    except TemplateError as error:
        text = str(error).replace(mark, "") if mark else str(error)
        raise PromptRefused(ErrorCode.TEMPLATE, text, "messages") from error


def _unsupported(text: str, field: str) -> PromptRefused:
    return PromptRefused(ErrorCode.UNSUPPORTED, text, field)


def _tools(text: str) -> Sequence[dict[str, Any]] | None:
    if not text:
        return None
    try:
        tools = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PromptRefused(ErrorCode.INVALID, f"tools is not JSON: {error}", "tools") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise PromptRefused(ErrorCode.INVALID, "tools is not a list of objects", "tools")
    return tools or None
