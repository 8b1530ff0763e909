"""Builds the prompt of a `Submit`: chat template, tokenizer, the text that was delivered before, and the grammar.

The result depends on the frame alone, so prompts can be built on any thread, one at a time. Grammars can be compiled on
another thread meanwhile.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.request import ChatInput, Grammar, Input, Limits, Message, Sampling, TextInput, TokensInput
from workers.engine.edits.dry import NO_BREAKERS, Breakers
from workers.engine.request import Constraint, ConstraintFailed
from workers.grammar.answer_grammar import FIELD as TOOLS_FIELD
from workers.grammar.answer_grammar import ToolCallGrammars
from workers.grammar.refusal import GrammarRefused
from workers.grammar.tool_grammar import ToolGrammarError, tool_problem
from workers.output_formats.calls.tool_schemas import ToolSchemas
from workers.output_formats.formats.choice import NO_FORMATS, ChosenFormats
from workers.output_formats.parser import OutputParser
from workers.output_formats.parsing import OutputParsing
from workers.output_formats.reasoning_gate import ReasoningGate
from workers.process.word_tokens import BreakerTokens, bad_sequences
from workers.text.conversation import ArgumentsError, has_calls, message_values, turns
from workers.text.detokenizer import IncrementalDetokenizer
from workers.text.message_style import SAMPLE_TOOLS, MessageStyle, find_style
from workers.text.template_budget import TemplateError
from workers.text.tokenizer import ChatFormat, Messages, Tokenizer, Tools

if TYPE_CHECKING:
    from workers.grammar.compiler import GrammarCompiler

WORDS = frozenset({"bad_words", "dry_sequence_breakers"})
"""Request fields, besides the prompt, that have texts to tokenize."""
CHARACTERS_PER_MESSAGE = 32
"""Characters to tokenize that cost as much as rendering one message, at least."""
CHARACTERS_PER_TOKEN = 4
"""Characters to tokenize that cost as much as detokenizing one resumed token."""
CHARACTERS_PER_BREAKER = 4096
"""Characters to tokenize that cost as much as looking for one breaker in the vocabulary."""


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """Prompt of a request for the engine."""

    tokens: tuple[int, ...]
    text: IncrementalDetokenizer | None
    """Detokenizer that has consumed the resumed tokens, whose text the client has. None without a tokenizer."""
    eos: frozenset[int]
    """Tokens that end the answer: end-of-sequence tokens and the request's own."""
    bad_sequences: tuple[tuple[int, ...], ...] = ()
    """The tokens of words that may not be generated."""
    breakers: Breakers = NO_BREAKERS
    """The tokens of breakers of the DRY penalty."""
    parser: OutputParser | None = None
    """In place of `text` for output that is parsed; it has consumed the resumed tokens as well."""
    gate: ReasoningGate | None = None
    """Makes the constraint over the reasoning; None for a request or a model without reasoning."""
    grammar: Grammar | None = None
    """The grammar of the answer, which is not compiled yet."""


class PromptRefused(Exception):
    """Raised by `build` for an invalid request. `field` is the invalid field."""

    def __init__(self, code: ErrorCode, text: str, field: str) -> None:
        super().__init__(text)
        self.code = code
        self.field = field


PromptResult = TokenizedPrompt | BaseException
"""A prompt, or the exception of its build; a panic of Rust code is no `Exception`."""
Result = TypeVar("Result")


def build_or_error(make: Callable[[Submit], Result], submit: Submit) -> Result | BaseException:
    """Build a prompt or a constraint, or return the exception: a bug in text code must end that request only."""
    try:
        return make(submit)
    except BaseException as error:  # noqa: BLE001  see `PromptResult`; nothing is awaited here, so no cancellation is swallowed
        return error


def tokenize_cost(submit: Submit) -> int:
    """Estimate the cost of building a prompt, in characters of text to tokenize: about 1 us each for a model's
    tokenizer."""
    sampling = submit.sampling
    others = CHARACTERS_PER_TOKEN * len(submit.resume) + 2 * sum(map(len, sampling.bad_words))
    if sampling.dry_multiplier:
        others += CHARACTERS_PER_BREAKER * len(sampling.dry_breakers)
    return others if isinstance(submit.input, TokensInput) else others + input_cost(submit.input)


def input_cost(source: Input) -> int:
    """Estimate the cost of tokenizing a text or a chat, or of detokenizing tokens, in the same unit."""
    if isinstance(source, TextInput):
        return len(source.text)
    if isinstance(source, ChatInput):
        characters = len(source.tools_json) + sum(map(_characters, source.messages))
        return characters + CHARACTERS_PER_MESSAGE * len(source.messages)
    return CHARACTERS_PER_TOKEN * len(source.tokens)


def may_be_constrained(submit: Submit) -> bool:
    """The answer may have a grammar: the request's own, or that of tool calls."""
    source = submit.input
    tools = isinstance(source, ChatInput) and source.parse_tools and bool(source.tools_json)
    return submit.grammar is not None or tools


def _characters(message: Message) -> int:
    calls = sum(len(call.id) + len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.name) + len(message.reasoning) + len(message.tool_call_id) + calls


class PromptBuilder:
    """Builds prompts for one model. What it keeps are facts about the model's chat template, and caches: the tokens of
    breakers, and compiled grammars."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        context: int,
        eos_ids: frozenset[int] = frozenset(),
        grammars: "GrammarCompiler | None" = None,
        formats: ChosenFormats = NO_FORMATS,
        vocab_size: int = 0,
    ) -> None:
        """Text that cannot fit into `context` tokens is refused before it is tokenized. `eos_ids` end the answers of a
        model without a tokenizer. Without `grammars`, requests that have one are refused. `vocab_size` is that of the
        model, in which constraints are."""
        self._grammars = grammars
        self._tokenizer = tokenizer
        self._context = context
        self._eos_ids = eos_ids if tokenizer is None else tokenizer.eos_ids
        self._breakers: BreakerTokens | None = None
        self._parsing = None if tokenizer is None else OutputParsing(tokenizer, formats, vocab_size)
        self._call_grammars = ToolCallGrammars(formats.tool_format, {} if tokenizer is None else tokenizer.added_tokens)
        self._styles: dict[bool, MessageStyle | None] = {}
        """The shape of tool calls for the chat template, with tools in the request and without. Found when needed."""

    def compiled(self, prompt: TokenizedPrompt) -> bool:
        """The grammar of the answer is compiled already, or it has none: `constraint` takes no time."""
        grammar = prompt.grammar
        return grammar is None or (self._grammars is not None and self._grammars.cached(grammar))

    def constraint(self, prompt: TokenizedPrompt, submit: Submit) -> Constraint | None:
        """Compile the grammar of the answer, which begins after the reasoning, and pass the constraint the resumed
        tokens. Raises `PromptRefused`."""
        constraint: Constraint | None = None if prompt.grammar is None else self._matcher(prompt.grammar, submit.limits)
        gate = prompt.gate
        if gate is not None and (constraint is not None or gate.limit is not None):
            constraint = gate.constraint(constraint)
        if constraint is None:
            return None
        try:
            for token in submit.resume:
                constraint.accept(token)
        except ConstraintFailed as error:
            raise PromptRefused(ErrorCode.INVALID, str(error), error.field) from error
        return constraint

    def _matcher(self, grammar: Grammar, limits: Limits) -> Constraint:
        if self._grammars is None:
            problem = "the model has no tokenizer, which grammars need"
            raise PromptRefused(ErrorCode.UNSUPPORTED, f"{problem}: leave {grammar.field} out", grammar.field)
        try:
            return self._grammars.matcher(grammar, ignore_eos=limits.ignore_eos)
        except GrammarRefused as error:
            code = ErrorCode.UNSUPPORTED if error.unsupported else ErrorCode.INVALID
            path = ".".join(filter(None, (grammar.field, error.path)))
            text = tool_problem(grammar.source, str(error)) if grammar.field == TOOLS_FIELD else str(error)
            raise PromptRefused(code, f"`{path}`: {text}", grammar.field) from error

    def _grammar(self, submit: Submit) -> Grammar | None:
        """Return the grammar of the answer: the request's own, that of tool calls that it must make, or both."""
        if not isinstance(submit.input, ChatInput):
            return submit.grammar
        try:
            return self._call_grammars.of(submit.input, submit.grammar)
        except ToolGrammarError as error:
            raise _unsupported(f"`{TOOLS_FIELD}`: {error}", TOOLS_FIELD) from error

    def build(self, submit: Submit) -> TokenizedPrompt:
        """Build the prompt of a request, without its grammar. Raises `PromptRefused` for an invalid request."""
        tokens = self.tokens(submit.input)
        parser, gate = None, None
        if self._parsing is not None and isinstance(submit.input, ChatInput):
            parser, gate = self._parse(self._parsing, submit, submit.input, tokens)
        text = self._text(submit, tokens) if parser is None else None
        limits = submit.limits
        eos = frozenset(limits.stop_ids) if limits.ignore_eos else self._eos_ids.union(limits.stop_ids)
        for token in submit.resume:
            # The client has this text; what was held back of it is sent with the next token.
            if token in eos and not limits.keep_stop:
                continue
            if text is not None:
                text.push(token)
            elif parser is not None:
                parser.push(token)
        bad, breakers = self._words(submit.sampling)
        return TokenizedPrompt(tokens, text, eos, bad, breakers, parser, gate, self._grammar(submit))

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
            submit.limits,
            tools,
            parses_tools=parses_tools,
            parses_reasoning=source.parse_reasoning,
            parallel=source.tool_choice.parallel,
        )
        limit = submit.limits.reasoning_tokens
        if limit is not None and not parsing.reasoning_known:
            problem = (
                "the notation of this model's reasoning is not known, so that its length cannot be limited: leave "
                "`thinking_token_budget` (`thinking.budget_tokens` in the Messages API) out"
            )
            raise PromptRefused(ErrorCode.UNSUPPORTED, problem, "thinking_token_budget")
        return parser, parsing.gate(prompt, limit) if source.parse_reasoning or limit is not None else None

    def _words(self, sampling: Sampling) -> tuple[tuple[tuple[int, ...], ...], Breakers]:
        """Return the tokens of texts that the sampling parameters name."""
        bad = bad_sequences(self._require_text("bad_words"), sampling.bad_words) if sampling.bad_words else ()
        if not sampling.dry_multiplier or not sampling.dry_breakers:
            return bad, NO_BREAKERS
        if self._breakers is None:
            self._breakers = BreakerTokens(self._require_text("dry_sequence_breakers"))
        return bad, self._breakers.of(sampling.dry_breakers)

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
        return tokenizer, _render(chat, messages, tools, source, mark), mark

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
        return IncrementalDetokenizer(self._tokenizer, context, submit.limits.stop, keep_stop=submit.limits.keep_stop)

    def _require_text(self, field: str) -> Tokenizer:
        if self._tokenizer is None:
            advice = f"leave {field} out" if field in WORDS else "give the prompt as token ids"
            raise PromptRefused(ErrorCode.UNSUPPORTED, f"the model has no tokenizer: {advice}", field)
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
