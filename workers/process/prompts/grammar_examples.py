"""Keeps examples of the answers that JSON schemas allow, in the tokens of the model."""

from collections import OrderedDict

from protocol.request import Grammar
from workers.grammar.example import example_of
from workers.grammar.refusal import GrammarRefused
from workers.grammar.source import parse_schema
from workers.text.tokenizer import Tokenizer

MAX_EXAMPLES = 64
"""Examples that are kept, those of the last schemas."""
MAX_TOKENS = 256
"""Tokens of an example: learning them takes the engine's thread some 2 ms, once for a schema and a client."""


class GrammarExamples:
    """Owns the examples of the last schemas."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int) -> None:
        """Without a tokenizer there are no examples. `vocab_size` is that of the model."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._known: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def of(self, grammar: Grammar | None) -> tuple[int, ...]:
        """Return the tokens of an example; none for a grammar that is no JSON schema."""
        if grammar is None or grammar.kind != "json_schema" or self._tokenizer is None:
            return ()
        known = self._known.get(grammar.source)
        if known is None:
            known = self._known[grammar.source] = self._encode(self._tokenizer, grammar.source)
        self._known.move_to_end(grammar.source)
        while len(self._known) > MAX_EXAMPLES:
            self._known.popitem(last=False)
        return known

    def _encode(self, tokenizer: Tokenizer, source: str) -> tuple[int, ...]:
        try:
            text = example_of(parse_schema(source))
        except GrammarRefused:  # the request is refused when its grammar is compiled
            return ()
        tokens = tokenizer.encode(text, special=False)[:MAX_TOKENS]
        return tuple(tokens) if max(tokens, default=0) < self._vocab_size else ()
