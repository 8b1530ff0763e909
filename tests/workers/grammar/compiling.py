"""A compiler with the vocabulary of the byte tokenizer, and what its matchers allow."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from protocol.request import Grammar
from workers.engine.request import Constraint
from workers.grammar.compiler import GrammarCompiler
from workers.grammar.vocabulary import byte_vocabulary
from workers.text.byte_tokenizer import EOS_ID


@contextmanager
def opened() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(byte_vocabulary)
    try:
        yield compiler
    finally:
        compiler.close()


def lark(source: str) -> Grammar:
    return Grammar("lark", source, "guided_grammar")


def allowed(constraint: Constraint) -> list[int]:
    """The tokens that may come next."""
    mask = constraint.mask()
    assert mask is not None
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def text_of(tokens: list[int]) -> str:
    """The characters of tokens, with $ for the end."""
    return "".join("$" if token == EOS_ID else chr(token) for token in tokens)


def matches(compiler: GrammarCompiler, grammar: Grammar, text: str) -> bool:
    """The grammar allows this text as a whole answer."""
    matcher = compiler.matcher(grammar)
    for byte in text.encode():
        if byte not in allowed(matcher):
            return False
        matcher.accept(byte)
    return not (following := allowed(matcher)) or EOS_ID in following
