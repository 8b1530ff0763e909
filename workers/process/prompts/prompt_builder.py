"""Builds the prompt of a `Submit`: its tokens, the text that was delivered before, and the grammar of the answer.

The result depends on the frame alone, so prompts can be built on any thread, one at a time. Grammars can be compiled on
another thread meanwhile.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.prefix_digests import PrefixDigests
from protocol.request import ChatInput, EmbeddedInput, Grammar, InfillInput, Input, Sampling
from workers.engine.edits.dry import NO_BREAKERS, Breakers
from workers.engine.embeddings.prompt_embeddings import PromptEmbeddings
from workers.engine.images.prompt_images import PromptImages
from workers.engine.pooled.pooled_prompt import PooledPrompt
from workers.engine.prefix_match import PinnedPrefix
from workers.engine.request import Constraint
from workers.engine.sparse.sparse_request import SparsePrompt
from workers.grammar.tool_calls.answer_grammar import ToolCallGrammars
from workers.grammar.tool_calls.call_syntax import call_writer
from workers.load_options import SparseSettings
from workers.output_formats.calls.tool_schemas import ToolSchemas
from workers.output_formats.formats.choice import NO_FORMATS, ChosenFormats
from workers.output_formats.parser import OutputParser
from workers.output_formats.parsing import OutputParsing
from workers.output_formats.reasoning_gate import ReasoningGate
from workers.pooling.served_pooling import NO_POOLING, ServedPooling
from workers.process.prompts.allowed_tokens import check_allowed
from workers.process.prompts.answer_constraint import AnswerConstraints
from workers.process.prompts.embedded_prompt import embedded_prompt, last_tokens
from workers.process.prompts.grammar_examples import GrammarExamples
from workers.process.prompts.images.image_prompts import ImagePrompts
from workers.process.prompts.images.image_source import ImageSource
from workers.process.prompts.pooled_prompts import PooledPrompts
from workers.process.prompts.prompt_encoder import PromptEncoder, tool_list
from workers.process.prompts.refusal import PromptRefused, unsupported
from workers.process.prompts.sparse_prompts import SparsePrompts
from workers.process.prompts.word_tokens import BreakerTokens, bad_sequences
from workers.text.detokenizer import IncrementalDetokenizer
from workers.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from workers.grammar.compiler import GrammarCompiler


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
    stop_ids: frozenset[int] = frozenset()
    """The tokens of `eos` that are only the request's own."""
    prefix: PrefixDigests = field(default_factory=lambda: PrefixDigests(""))
    """The digests of the prompt."""
    pins: tuple[PinnedPrefix, ...] = ()
    """Its prefixes that the prefix tier is to keep."""
    embeddings: PromptEmbeddings | None = None
    """The rows of embeddings among the tokens."""
    sparse: SparsePrompt | None = None
    """The part of it that is computed; None for all of it."""
    example: tuple[int, ...] = ()
    """An example of what the grammar allows."""
    images: PromptImages | None = None
    """The images whose rows are among the tokens."""
    pooled: PooledPrompt | None = None
    """The vector that is computed of it in place of an answer."""

    @property
    def grammar_name(self) -> str:
        """A digest of the grammar; empty without one."""
        if self.grammar is None:
            return ""
        return hashlib.blake2b(f"{self.grammar.kind}:{self.grammar.source}".encode(), digest_size=16).hexdigest()


PromptResult = TokenizedPrompt | BaseException
"""A prompt, or the exception of its build; a panic of Rust code is no `Exception`."""
Result = TypeVar("Result")


def build_or_error(make: Callable[[Submit], Result], submit: Submit) -> Result | BaseException:
    """Build a prompt or a constraint, or return the exception: a bug in text code must end that request only."""
    try:
        return make(submit)
    except BaseException as error:  # noqa: BLE001  see `PromptResult`; nothing is awaited here, so no cancellation is swallowed
        return error


def _always() -> bool:
    return True


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
        sparse: SparseSettings | None = None,
        images: ImageSource | None = None,
        pooling: ServedPooling = NO_POOLING,
    ) -> None:
        """Text that cannot fit into `context` tokens is refused before it is tokenized. `eos_ids` end the answers of a
        model without a tokenizer. Without `grammars`, requests that have one are refused. `vocab_size` is that of the
        model, in which constraints are. `sparse` as in `SparsePrompts`, and `images` as in `ImagePrompts`. `pooling` is
        what the model makes of hidden states."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._context = context
        self._eos_ids = eos_ids if tokenizer is None else tokenizer.eos_ids
        self._breakers: BreakerTokens | None = None
        self._parsing = None if tokenizer is None else OutputParsing(tokenizer, formats, vocab_size)
        added = {} if tokenizer is None else tokenizer.added_tokens
        placeholder = "" if images is None else images.placeholder
        self._encoder = PromptEncoder(tokenizer, context, call_writer(formats.tools, added), placeholder)
        self._images = ImagePrompts(images, context)
        self._pooled = PooledPrompts(self._encoder, context, pooling)
        self._generates = pooling.generates
        self._embeds = pooling.width > 0
        self._sparse = SparsePrompts(sparse, self._encoder.boundaries)
        self._examples = GrammarExamples(tokenizer, vocab_size)
        self._constraints = AnswerConstraints(grammars, ToolCallGrammars(formats.tools, added))

    def compiled(self, prompt: TokenizedPrompt) -> bool:
        """The grammar of the answer is compiled already, or it has none: `constraint` takes no time."""
        return self._constraints.compiled(prompt.grammar)

    def constraint(self, prompt: TokenizedPrompt, submit: Submit) -> Constraint | None:
        """Compile the grammar of the answer, and pass the constraint the resumed tokens. Raises `PromptRefused`."""
        return self._constraints.constraint(prompt.grammar, prompt.gate, submit)

    def tokens(self, source: Input, *, special: bool = True) -> tuple[int, ...]:
        """See `PromptEncoder.tokens`."""
        images = self._images.outline(source) if isinstance(source, ChatInput) else None
        tokens = self._encoder.tokens(source, images, special=special)
        if images is not None:
            images.starts(tokens)  # refuses what cannot be generated from
        return tokens

    def text(self, source: Input) -> str:
        """See `PromptEncoder.text`."""
        return self._encoder.text(source)

    def build(self, submit: Submit, wanted: Callable[[], bool] = _always) -> TokenizedPrompt:
        """Build the prompt of a request, without its grammar. Raises `PromptRefused` for an invalid request, and
        `PromptCancelled` between two images if it is not `wanted` any more."""
        if submit.pooled is not None:
            pooled_tokens, pooled = self._pooled.build(submit, submit.pooled)
            return TokenizedPrompt(pooled_tokens, None, frozenset(), pooled=pooled)
        if not self._generates:
            paths = "/v1/embeddings or /v1/rerank" if self._embeds else "/v1/rerank or /v1/score"
            problem = f"the model generates no text: send texts to {paths}"
            if isinstance(submit.input, ChatInput):
                raise unsupported(problem, "messages")
            raise unsupported(problem, "prompt")
        check_allowed(submit.sampling, self._vocab_size)
        embeddings = images = placed = None
        if isinstance(submit.input, EmbeddedInput):
            tokens, embeddings = embedded_prompt(submit.input, self._context)
        else:
            if isinstance(submit.input, ChatInput):
                images = self._images.prepare(submit.input, wanted, submit.tenant)
            tokens = self._encoder.tokens(submit.input, images)
        numbered = tokens
        if images is not None:
            numbered, placed = images.prompt(tokens)
        parser, gate = None, None
        if self._parsing is not None and isinstance(submit.input, ChatInput):
            parser, gate = self._parse(self._parsing, submit, submit.input, tokens)
        text = self._text(submit, tokens) if parser is None else None
        limits = submit.limits
        ends = frozenset() if limits.ignore_eos else self._ends(submit.input)
        stop_ids = frozenset(limits.stop_ids).difference(ends)
        eos = ends | stop_ids
        for token in submit.resume:
            # The client has this text; what was held back of it is sent with the next token.
            if token in eos and not limits.keep_stop:
                continue
            if text is not None:
                text.push(token)
            elif parser is not None:
                parser.push(token)
        bad, breakers = self._words(submit.sampling)
        grammar = self._constraints.grammar(submit, gate)
        prefix = PrefixDigests.of(submit.input, submit.tenant)
        pins = self._encoder.pinned(submit.input, tokens, images) if isinstance(submit.input, ChatInput) else ()
        sparse, example = self._sparse.of(submit, tokens), self._examples.of(grammar)
        return TokenizedPrompt(
            numbered,
            text,
            eos,
            bad,
            breakers,
            parser,
            gate,
            grammar,
            stop_ids,
            prefix,
            pins,
            embeddings,
            sparse,
            example,
            placed,
        )

    def _ends(self, source: Input) -> frozenset[int]:
        """Return the end-of-sequence tokens; the text of a gap has more of them."""
        if not isinstance(source, InfillInput) or self._tokenizer is None or self._tokenizer.infill is None:
            return self._eos_ids
        return self._eos_ids | self._tokenizer.infill.ends

    def _parse(
        self, parsing: OutputParsing, submit: Submit, source: ChatInput, prompt: tuple[int, ...]
    ) -> tuple[OutputParser | None, ReasoningGate | None]:
        parses_tools = source.parse_tools and source.tool_choice.mode != "none"
        if parses_tools and source.tools_json and not parsing.tools_known:
            problem = "the notation of this model's calls is not known: give --tool-parser, or leave `tools` out"
            raise PromptRefused(ErrorCode.UNSUPPORTED, problem, "tools")
        tools = ToolSchemas((tool_list(source.tools_json) or ()) if parses_tools else ())
        parser = parsing.parser(
            prompt,
            submit.limits,
            tools,
            parses_tools=parses_tools,
            parses_reasoning=source.parse_reasoning,
            parallel=source.tool_choice.parallel,
        )
        limit = submit.limits.reasoning_tokens
        if limit is not None and not parsing.reasoning_known and submit.limits.reasoning_optional:
            limit = None
        if limit is not None and not parsing.reasoning_known:
            problem = (
                "the notation of this model's reasoning is not known, so that its length cannot be limited: leave "
                "`thinking_token_budget` out"
            )
            raise PromptRefused(ErrorCode.UNSUPPORTED, problem, "thinking_token_budget")
        if not source.parse_reasoning and limit is None:
            return parser, None
        return parser, parsing.gate(prompt, limit, parses_tools=parses_tools)

    def _words(self, sampling: Sampling) -> tuple[tuple[tuple[int, ...], ...], Breakers]:
        """Return the tokens of texts that the sampling parameters name."""
        bad = bad_sequences(self._encoder.require("bad_words"), sampling.bad_words) if sampling.bad_words else ()
        if not sampling.dry_multiplier or not sampling.dry_breakers:
            return bad, NO_BREAKERS
        if self._breakers is None:
            self._breakers = BreakerTokens(self._encoder.require("dry_sequence_breakers"))
        return bad, self._breakers.of(sampling.dry_breakers)

    def _text(self, submit: Submit, prompt: tuple[int, ...]) -> IncrementalDetokenizer | None:
        if self._tokenizer is None:
            if submit.limits.stop:
                problem = "the model has no tokenizer, which stop strings need: leave `stop` out"
                raise PromptRefused(ErrorCode.UNSUPPORTED, problem, "stop")
            return None
        # An answer in a chat starts a new text; any other continues the text of its prompt.
        context: Sequence[int] = () if isinstance(submit.input, ChatInput) else prompt
        if isinstance(submit.input, EmbeddedInput):
            context = last_tokens(prompt)
        return IncrementalDetokenizer(self._tokenizer, context, submit.limits.stop, keep_stop=submit.limits.keep_stop)
