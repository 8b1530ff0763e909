"""Grammars in llguidance's form, and the limits that they are compiled with."""

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from protocol.request import Grammar
from workers.grammar.refusal import GrammarRefused

WHITESPACE = r"\x20|\x0D?\x0A[\x20\x09]{0,16}"
"""Whitespace where JSON allows any, at most once at each place: a space, or a line break and an indentation. Models
would otherwise repeat it until `max_tokens`."""
_OWN_WHITESPACE = ("whitespace_flexible", "whitespace_pattern")
MAX_LEVELS = 128
"""Levels of arrays and objects in a schema."""
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")


def parser_limits() -> LLParserLimits:
    """Return the limits of size, and of the work for one mask: about 10 ms. Errors do not show the matcher's state."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_items_in_row=2_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def llguidance_grammar(grammar: Grammar) -> str:
    """Return the grammar in llguidance's form. Raises `GrammarRefused` if it is malformed; llguidance finds most
    errors only when it compiles the result."""
    match grammar.kind:
        case "json_object":
            return schema_grammar({"type": "object"})
        case "json_schema":
            return schema_grammar(parse_schema(grammar.source))
        case "choice":
            return _choice_grammar(grammar.source)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.source)


def parse_schema(source: str) -> dict[str, Any]:
    """Return a JSON schema. Raises `GrammarRefused` if it is not one, or nested too deeply."""
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"the schema is not JSON: {error}") from error
    if schema is True:
        return {}
    if schema is False:
        raise GrammarRefused("the schema is `false`, which allows no value")
    if not isinstance(schema, dict):
        raise GrammarRefused("the schema must be an object or a boolean")
    if _levels_exceed(schema, MAX_LEVELS):
        raise GrammarRefused(f"the schema is nested more than {MAX_LEVELS} levels deep")
    return schema


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """Return the grammar of a JSON schema. Its own `x-guidance` may set other whitespace."""
    own = schema.get("x-guidance")
    sets_whitespace = isinstance(own, dict) and not own.keys().isdisjoint(_OWN_WHITESPACE)
    try:
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema), defaults=None if sets_whitespace else {"whitespace_pattern": WHITESPACE}
        )
    except ValueError as error:
        raise GrammarRefused(str(error)) from error


def _choice_grammar(source: str) -> str:
    """Return a grammar of the strings in a JSON list: a regular expression, whose matching does not slow down with
    their number."""
    try:
        choices = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"the choices are not JSON: {error}") from error
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise GrammarRefused("the choices must be a list of strings, none of them empty")
    return LLMatcher.grammar_from_regex("|".join(_META.sub(r"\\\g<0>", each) for each in choices))


def _levels_exceed(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            each
            for outer in level
            for each in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(each, dict | list)
        ]
        if not level:
            return False
    return True
