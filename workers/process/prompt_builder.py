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
from workers.text.detokenizer import IncrementalDetokenizer
from workers.text.template_budget import TemplateError
from workers.text.tokenizer import ChatFormat, Tokenizer

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
        characters = len(source.tools_json) + sum(
            len(message.content) + len(message.name) for message in source.messages
        )
        return resumed + characters + CHARACTERS_PER_MESSAGE * len(source.messages)
    return resumed


class PromptBuilder:
    """Builds prompts for one model. Stateless."""

    def __init__(self, tokenizer: Tokenizer | None, context: int) -> None:
        """Text that cannot fit into `context` tokens is refused before it is tokenized."""
        self._tokenizer = tokenizer
        self._context = context

    def build(self, submit: Submit) -> TokenizedPrompt:
        """Build the prompt of a request. Raises `PromptRefused` for an invalid request."""
        tokens = self._tokens(submit.input)
        text = self._text(submit, tokens)
        eos = self._tokenizer.eos_ids if self._tokenizer and not submit.limits.ignore_eos else frozenset()
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
            # The template writes out special tokens itself.
            return self._encode(tokenizer, _render(tokenizer.chat, source), "messages", special=False)
        return source.tokens

    def _encode(self, tokenizer: Tokenizer, text: str, field: str, *, special: bool) -> tuple[int, ...]:
        if len(text) > self._context * tokenizer.longest_token:
            problem = f"{field} of {len(text)} characters cannot fit into a context of {self._context} tokens"
            raise PromptRefused(ErrorCode.CONTEXT, problem, field)
        return tuple(tokenizer.encode(text, special=special))

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


def _render(chat: ChatFormat, source: ChatInput) -> str:
    tools = _tools(source.tools_json)
    if tools and not chat.takes_tools:
        raise PromptRefused(
            ErrorCode.UNSUPPORTED, "the model's chat template does not support tools: leave tools out", "tools"
        )
    try:
        return chat.render(
            [_turn(message) for message in source.messages], tools, now=source.now, options=source.options
        )
    except TemplateError as error:
        raise PromptRefused(ErrorCode.TEMPLATE, str(error), "messages") from error


def _turn(message: Message) -> dict[str, str]:
    """The message as templates read it. A name that is not given is not defined."""
    turn = {"role": message.role, "content": message.content}
    return turn | {"name": message.name} if message.name else turn


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
