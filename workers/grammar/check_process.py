"""The check process: compiles grammars of clients where a crash, a runaway or a memory bomb harms nobody.

llguidance bounds most of its work, but not all: a schema with many `multipleOf` compiles for minutes, and a grammar of
25,000 nested rules overflows the stack. So a worker compiles only what this process has compiled before, with a
vocabulary of bytes and the model's special tokens.

It reads lines of JSON: first `SpecialTokens`, then a grammar each. It answers each line with a `CheckResult`. The
kernel ends it when a grammar takes more than
`CHECK_CPU_S`. It ends with its standard input.
"""

import os
import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

import msgspec
from llguidance import LLMatcher, LLTokenizer
from msgspec import Struct

from protocol.request import Grammar
from workers.grammar.location import locate_error
from workers.grammar.refusal import GrammarRefused
from workers.grammar.source import llguidance_grammar, parse_schema, parser_limits, schema_grammar
from workers.grammar.vocabulary import SpecialTokens, byte_vocabulary

CHECK_CPU_S = 0.3
"""Processor time for one grammar."""
NICENESS = 5
"""Less than the streams that run."""
CHECK_BYTES = 1 << 30
"""Address space of the process."""


MAX_PROBLEM = 1000
"""Characters of an error text."""


class CheckResult(Struct, frozen=True):
    """The result of one grammar."""

    problem: str = ""
    """Why it cannot be used; empty if it can."""
    path: str = ""
    """The place of the problem in a schema."""


class GrammarChecker:
    """Checks grammars one after the other."""

    def __init__(self, special: SpecialTokens) -> None:
        self._vocabulary = byte_vocabulary(special)

    def check(self, grammar: Grammar) -> CheckResult:
        """Compile a grammar, and compute the tokens that an answer may begin with."""
        try:
            source = llguidance_grammar(grammar)
        except GrammarRefused as error:
            return CheckResult(_shortened(str(error)), error.path)
        problem = self._problem(source)
        path = ""
        if problem and grammar.kind == "json_schema":
            path = locate_error(parse_schema(grammar.source), problem, self._schema_problem)
        return CheckResult(_shortened(problem), path)

    def _schema_problem(self, schema: Mapping[str, Any]) -> str:
        try:
            return self._problem(schema_grammar(schema))
        except GrammarRefused as error:
            return str(error)

    def _problem(self, source: str) -> str:
        matcher = LLMatcher(self._vocabulary, source, log_level=0, limits=parser_limits())
        return first_problem(matcher, self._vocabulary)


def _shortened(text: str) -> str:
    """Leave out the middle of a long text, which repeats the grammar."""
    half = MAX_PROBLEM // 2
    return text if len(text) <= MAX_PROBLEM else f"{text[:half]} ... {text[-half:]}"


def first_problem(matcher: LLMatcher, vocabulary: LLTokenizer) -> str:
    """Return why no answer can begin in a new matcher; empty if one can."""
    if matcher.is_error():
        return dead_end(matcher.get_error())
    first = bytearray(matcher.compute_bitmask())
    if matcher.is_error():
        return dead_end(matcher.get_error())
    for token in vocabulary.eos_tokens:
        first[token // 8] &= 0xFF ^ (1 << token % 8)
    return "" if any(first) else "it allows no text but the empty one"


def dead_end(error: str) -> str:
    """Describe the error of a matcher."""
    text = error.removesuffix("<non-verbose/>").strip()
    return "it allows no text" if text == "NoExtensionBias" else text


def main(lines: BinaryIO, results: BinaryIO) -> None:
    """Check a grammar for each line."""
    checker = GrammarChecker(msgspec.json.decode(lines.readline(), type=SpecialTokens))
    _answer(results, CheckResult())
    for line in lines:
        grammar = msgspec.json.decode(line, type=Grammar)
        signal.setitimer(signal.ITIMER_PROF, CHECK_CPU_S)
        result = checker.check(grammar)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _answer(results, result)


def _answer(results: BinaryIO, result: CheckResult) -> None:
    results.write(msgspec.json.encode(result) + b"\n")
    results.flush()


def limit_memory() -> None:
    """Make the allocation of more than `CHECK_BYTES` fail, which ends the process."""
    if sys.platform == "linux":  # elsewhere the limit is not kept, or not allowed
        resource.setrlimit(resource.RLIMIT_AS, (CHECK_BYTES, CHECK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    limit_memory()
    os.nice(NICENESS)
    main(sys.stdin.buffer, sys.stdout.buffer)
