"""Prompts whose hidden states are pooled: their tokens, and what is made of them."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.request import Input, PairInput, Pooled, TextInput, TokensInput
from workers.engine.pooled.pooled_prompt import PooledPrompt, Pooler
from workers.pooling.pair_template import PairTemplate
from workers.pooling.served_pooling import ServedPooling
from workers.process.prompts.prompt_encoder import ADD_TOKENIZER, SEND_IDS, PromptEncoder
from workers.process.prompts.refusal import PromptRefused, unsupported
from workers.text.template_budget import TemplateError
from workers.text.tokenizer import Tokenizer

DIMENSIONS = "dimensions"
"""The request field that errors name."""
PROMPT_NAME = "prompt_name"
"""Likewise."""
INSTRUCTION = "instruction"
"""Likewise."""
SPARE_TOKENS = 8
"""Tokens at the end of a divided text that may be others than those of the whole one: of a part of a word."""


@runtime_checkable
class PairTokenizer(Protocol):
    """A tokenizer that puts two texts into one sequence."""

    def encode_pair(self, first: str, second: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return the ids and the segment of each token."""


class PooledPrompts:
    """Builds these prompts for one model."""

    def __init__(self, encoder: PromptEncoder, context: int, pooling: ServedPooling) -> None:
        self._encoder = encoder
        self._context = min(context, pooling.max_tokens or context)
        self._pooling = pooling

    def build(self, submit: Submit, pooled: Pooled) -> tuple[tuple[int, ...], PooledPrompt]:
        """Return the tokens of a request, and what is computed of them. Raises `PromptRefused`."""
        self._check(submit.input, pooled)
        tokens, types = self._tokens(submit.input, pooled)
        if not tokens:
            raise PromptRefused(ErrorCode.INVALID, "the text has no tokens", "prompt")
        if len(tokens) > self._context:
            raise self._too_long(f"{len(tokens)} tokens")
        return tokens, PooledPrompt(lambda: self._pooler(pooled), types)

    def _pooler(self, pooled: Pooled) -> Pooler:
        if pooled.kind == "scores":
            return self._pooling.score_pooler(activate=pooled.activate, probabilities=pooled.probabilities)
        return self._pooling.vector_pooler(pooled.dimensions, pooled.normalize)

    def _check(self, source: Input, pooled: Pooled) -> None:
        pooling = self._pooling
        if not isinstance(source, TextInput | TokensInput | PairInput):
            raise unsupported("embeddings and scores are of texts and token ids", "prompt")
        if pooled.kind == "scores":
            if pooling.classifier is None:
                raise unsupported("the model has no classifier that scores texts", "prompt")
            if not (pooling.pairs if isinstance(source, PairInput) else pooling.label_names):
                takes = "pairs of texts" if pooling.pairs else "single texts"
                raise unsupported(f"the model scores {takes}", "prompt")
            if pooled.instruction and pooling.template is None:
                raise unsupported("the model takes no instruction: leave it out", INSTRUCTION)
            return
        if not pooling.width:
            raise unsupported("the model makes no embeddings: choose another one", "prompt")
        if isinstance(source, PairInput):
            raise unsupported("an embedding is of one text", "prompt")
        if pooled.dimensions > pooling.width:
            text = f"`{DIMENSIONS}` is {pooled.dimensions}, the embeddings of the model have {pooling.width} numbers"
            raise PromptRefused(ErrorCode.INVALID, text, DIMENSIONS)
        if pooled.prompt and pooled.prompt not in pooling.prompts:
            names = ", ".join(sorted(pooling.prompts)) or "none"
            text = f"the model has no prompt {pooled.prompt!r}; it has: {names}"
            raise PromptRefused(ErrorCode.INVALID, text, PROMPT_NAME)

    def _tokens(self, source: Input, pooled: Pooled) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        most = None if pooled.truncate is None else min(pooled.truncate or self._context, self._context)
        if isinstance(source, TokensInput):
            return source.tokens[:most], None
        tokenizer = self._encoder.require("prompt", ADD_TOKENIZER if isinstance(source, PairInput) else SEND_IDS)
        if isinstance(source, PairInput) and self._pooling.template is not None:
            return self._templated(tokenizer, self._pooling.template, source, pooled.instruction, most), None
        if isinstance(source, PairInput):
            first, second = (self._text(tokenizer, text, most) for text in (source.first, source.second))
            return _encode_pair(tokenizer, first, second, most)
        assert isinstance(source, TextInput)
        before = self._pooling.prompts.get(pooled.prompt or self._pooling.default_prompt, "")
        text = self._text(tokenizer, before + source.text, most)
        tokens = tokenizer.encode(text, special=pooled.special)
        if most is None or len(tokens) <= most:
            return tuple(tokens), None
        return tuple(_truncated(tokens, tokenizer.encode(text, special=False), most)), None

    def _templated(
        self, tokenizer: Tokenizer, template: PairTemplate, source: PairInput, instruction: str, most: int | None
    ) -> tuple[int, ...]:
        query, document = (self._text(tokenizer, text, most) for text in (source.first, source.second))
        try:
            tokens = template.encode(tokenizer, query, document, instruction, most)
        except TemplateError as error:
            raise PromptRefused(ErrorCode.TEMPLATE, str(error), "prompt") from error
        if most is not None and len(tokens) > most:
            text = f"the model's form of a pair has {len(tokens)} tokens without the texts: more than {most}"
            raise PromptRefused(ErrorCode.INVALID, text, "prompt")
        return tuple(tokens)

    def _text(self, tokenizer: Tokenizer, text: str, most: int | None) -> str:
        """Return a text without an end that cannot be among its first tokens. One that is not truncated and cannot fit
        is refused before all of it is tokenized.

        The beginning that is tokenized doubles until it has enough tokens: normalizers remove characters, and a word of
        any length may be one unknown token, so that no number of characters has a token for certain.
        """
        wanted = (self._context if most is None else most) + SPARE_TOKENS
        end = wanted * tokenizer.longest_token
        while end < len(text):
            if len(tokenizer.encode(text[:end], special=False)) >= wanted:
                if most is None:
                    raise self._too_long(f"{len(text)} characters")
                return text[:end]
            end *= 2
        return text

    def _too_long(self, length: str) -> PromptRefused:
        text = f"the text has {length}, and the model takes {self._context} tokens"
        return PromptRefused(ErrorCode.CONTEXT, f"{text}: send less, or let it be truncated", "prompt")


def _find(tokens: Sequence[int], part: Sequence[int], start: int = 0) -> int | None:
    """Return where a part of tokens begins, from `start` on."""
    size = len(part)
    found = (at for at in range(start, len(tokens) - size + 1) if list(tokens[at : at + size]) == list(part))
    return next(found, None)


def _truncated(tokens: Sequence[int], bare: Sequence[int], most: int) -> list[int]:
    """Return at most so many tokens: those that the tokenizer puts around a text, and the first ones of the text, which
    are `bare` without the others. If there is no room for these, the first tokens."""
    begin = _find(tokens, bare)
    around = len(tokens) - len(bare)
    if begin is None or around >= most:
        return list(tokens[:most])
    return [*tokens[:begin], *bare[: most - around], *tokens[begin + len(bare) :]]


def _encode_pair(
    tokenizer: Tokenizer, first: str, second: str, most: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens of two texts and their segments. Tokens at the end of the longer text are dropped until at most
    `most` are left, as transformers does (`longest_first`)."""
    if not isinstance(tokenizer, PairTokenizer):
        raise unsupported("the tokenizer of the model has no form for pairs of texts", "prompt")
    tokens, types = tokenizer.encode_pair(first, second)
    if most is None or len(tokens) <= most:
        return tuple(tokens), tuple(types)
    bare = [tokenizer.encode(text, special=False) for text in (first, second)]
    begin = _find(tokens, bare[0])
    middle = None if begin is None else _find(tokens, bare[1], begin + len(bare[0]))
    if begin is None or middle is None or len(tokens) - len(bare[0]) - len(bare[1]) >= most:
        return tuple(tokens[:most]), tuple(types[:most])
    kept = [len(each) for each in bare]
    for _ in range(len(tokens) - most):
        kept[kept[0] <= kept[1]] -= 1
    ends = (begin + len(bare[0]), middle + len(bare[1]))
    left = [*range(begin + kept[0]), *range(ends[0], middle + kept[1]), *range(ends[1], len(tokens))]
    return tuple(tokens[at] for at in left), tuple(types[at] for at in left)
