"""Builds the prompt of a `Submit`: chat template, tokenizer, and the text that was delivered before.

The result depends on the frame alone, so prompts can be built on any thread, one at a time.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.request import ChatInput, Input, TextInput, TokensInput
from workers.text.detokenizer import IncrementalDetokenizer
from workers.text.template_budget import TemplateError
from workers.text.tokenizer import ChatFormat, Messages, Tokenizer, Tools

ROLES = frozenset({"system", "user", "assistant", "tool"})
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
    resumed = CHARACTERS_PER_TOKEN * len(submit.resume)
    return resumed if isinstance(submit.input, TokensInput) else resumed + input_cost(submit.input)


def input_cost(source: Input) -> int:
    """Estimate the cost of tokenizing a text or a chat, or of detokenizing tokens, in the same unit."""
    if isinstance(source, TextInput):
        return len(source.text)
    if isinstance(source, ChatInput):
        characters = len(source.tools_json) + sum(
            len(message.content) + len(message.name) for message in source.messages
        )
        return characters + CHARACTERS_PER_MESSAGE * len(source.messages)
    return CHARACTERS_PER_TOKEN * len(source.tokens)


class PromptBuilder:
    """Builds prompts for one model. Stateless."""

    def __init__(self, tokenizer: Tokenizer | None, context: int, eos_ids: frozenset[int] = frozenset()) -> None:
        """Text that cannot fit into `context` tokens is refused before it is tokenized. `eos_ids` end the answers of a
        model without a tokenizer."""
        self._tokenizer = tokenizer
        self._context = context
        self._eos_ids = eos_ids if tokenizer is None else tokenizer.eos_ids

    def build(self, submit: Submit) -> TokenizedPrompt:
        """Build the prompt of a request. Raises `PromptRefused` for an invalid request."""
        tokens = self.tokens(submit.input)
        text = self._text(submit, tokens)
        eos = frozenset() if submit.limits.ignore_eos else self._eos_ids
        for token in submit.resume:
            # The client has this text; what was held back of it is sent with the next token.
            if text is not None and token not in eos:
                text.push(token)
        return TokenizedPrompt(tokens, text, eos)

    def tokens(self, source: Input, *, special: bool = True) -> tuple[int, ...]:
        """Return the tokens of a prompt. `special` adds those that the model expects around a text. Raises
        `PromptRefused`."""
        if isinstance(source, TextInput):
            return self._encode(self._require_text("prompt"), source.text, "prompt", special=special)
        if isinstance(source, ChatInput):
            tokenizer, text, mark = self._rendered(source)
            if not mark:
                return self._encode(tokenizer, text, "messages", special=False)
            self._check_length(tokenizer, len(text) - len(mark) * text.count(mark), "messages")
            return tuple(tokenizer.encode_marked(text, mark))
        return source.tokens

    def text(self, source: Input) -> str:
        """Return the text of a prompt: a chat's by the template, and that of tokens without special ones. Raises
        `PromptRefused`."""
        if isinstance(source, TextInput):
            return source.text
        if isinstance(source, ChatInput):
            _, text, mark = self._rendered(source)
            return text.replace(mark, "") if mark else text
        tokenizer = self._require_text("tokens")
        if (unknown := next((token for token in source.tokens if token >= tokenizer.vocab_size), None)) is not None:
            problem = f"token {unknown} is not in the vocabulary of {tokenizer.vocab_size} tokens"
            raise PromptRefused(ErrorCode.INVALID, problem, "tokens")
        return tokenizer.decode(source.tokens)

    def _rendered(self, source: ChatInput) -> tuple[Tokenizer, str, str]:
        """Render a chat. The template writes out control tokens itself; those in messages are text, and marked in the
        result by the mark beside it, if there are any."""
        tokenizer = self._require_text("messages")
        chat = tokenizer.chat
        if chat is None:
            raise PromptRefused(ErrorCode.UNSUPPORTED, "the model has no chat template", "messages")
        # Not the keys and the usual roles, by which templates choose, whatever control tokens a vocabulary has.
        texts = [
            ["" if message.role in ROLES else message.role, message.content, message.name]
            for message in source.messages
        ]
        tools = _tools(source.tools_json)
        try:
            (texts, tools), mark = tokenizer.mark_control_tokens([texts, tools])
        except RecursionError:
            raise PromptRefused(ErrorCode.INVALID, "tools is nested too deeply", "tools") from None
        messages = [
            _turn(role or message.role, content, name)
            for message, (role, content, name) in zip(source.messages, texts, strict=True)
        ]
        return tokenizer, _render(chat, messages, tools, source, mark), mark

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
    if tools and not chat.takes_tools:
        raise PromptRefused(
            ErrorCode.UNSUPPORTED, "the model's chat template does not support tools: leave tools out", "tools"
        )
    try:
        return chat.render(messages, tools, now=source.now, options=source.options)
    except TemplateError as error:
        text = str(error).replace(mark, "") if mark else str(error)
        raise PromptRefused(ErrorCode.TEMPLATE, text, "messages") from error


def _turn(role: str, content: str, name: str) -> dict[str, str]:
    """A message as templates read it. A name that is not given is not defined."""
    turn = {"role": role, "content": content}
    return turn | {"name": name} if name else turn


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
