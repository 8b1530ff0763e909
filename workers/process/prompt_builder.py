"""Builds the prompt of a `Submit`: chat template, tokenizer, and the text that was delivered before.

The result depends on the frame alone, so prompts can be built on any thread, one at a time.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.request import ChatInput, Input, TextInput
from workers.output_formats.calls.tool_schemas import ToolSchemas
from workers.output_formats.formats.choice import NO_FORMATS, ChosenFormats
from workers.output_formats.parser import OutputParser
from workers.output_formats.parsing import OutputParsing
from workers.output_formats.reasoning_gate import ReasoningGate
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
    parser: OutputParser | None = None
    """In place of `text` for output that is parsed; it has consumed the resumed tokens as well."""
    gate: ReasoningGate | None = None
    """Makes the constraint over the reasoning; None for a request or a model without reasoning."""


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

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        context: int,
        eos_ids: frozenset[int] = frozenset(),
        formats: ChosenFormats = NO_FORMATS,
        vocab_size: int = 0,
    ) -> None:
        """Text that cannot fit into `context` tokens is refused before it is tokenized. `eos_ids` end the answers of a
        model without a tokenizer. `vocab_size` is that of the model, in which constraints are."""
        self._tokenizer = tokenizer
        self._context = context
        self._eos_ids = eos_ids if tokenizer is None else tokenizer.eos_ids
        self._parsing = None if tokenizer is None else OutputParsing(tokenizer, formats, vocab_size)

    def build(self, submit: Submit) -> TokenizedPrompt:
        """Build the prompt of a request. Raises `PromptRefused` for an invalid request."""
        tokens = self._tokens(submit.input)
        parser, gate = None, None
        if self._parsing is not None and isinstance(submit.input, ChatInput):
            parser, gate = self._parse(self._parsing, submit, submit.input, tokens)
        text = self._text(submit, tokens) if parser is None else None
        eos = frozenset() if submit.limits.ignore_eos else self._eos_ids
        for token in submit.resume:
            # The client has this text; what was held back of it is sent with the next token.
            if token in eos:
                continue
            if text is not None:
                text.push(token)
            elif parser is not None:
                parser.push(token)
        return TokenizedPrompt(tokens, text, eos, parser, gate)

    def _parse(
        self, parsing: OutputParsing, submit: Submit, source: ChatInput, prompt: tuple[int, ...]
    ) -> tuple[OutputParser | None, ReasoningGate | None]:
        parses_tools = source.parse_tools and source.tool_choice.mode != "none"
        if parses_tools and source.tools_json and not parsing.tools_known:
            problem = "the notation of this model's tool calls is not known: give --tool-parser, or leave tools out"
            raise PromptRefused(ErrorCode.UNSUPPORTED, problem, "tools")
        tools = ToolSchemas((_tools(source.tools_json) or ()) if parses_tools else ())
        parser = parsing.parser(
            prompt,
            submit.limits.stop,
            tools,
            parses_tools=parses_tools,
            parses_reasoning=source.parse_reasoning,
            parallel=source.tool_choice.parallel,
        )
        limit = submit.limits.reasoning_tokens
        if limit is not None and not parsing.reasoning_known:
            problem = "the notation of this model's reasoning is not known: leave the bound on reasoning out"
            raise PromptRefused(ErrorCode.UNSUPPORTED, problem, "thinking_token_budget")
        return parser, parsing.gate(prompt, limit) if source.parse_reasoning or limit is not None else None

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
        text = _render(chat, messages, tools, source, mark)
        if not mark:
            return self._encode(tokenizer, text, "messages", special=False)
        self._check_length(tokenizer, len(text) - len(mark) * text.count(mark), "messages")
        return tuple(tokenizer.encode_marked(text, mark))

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
