"""The fields that errors of workers name, collected from their code."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from protocol.request import Sampling
from workers.engine.request import EMBEDDINGS, SPARSE, SPARSE_KEEP
from workers.grammar.tool_calls import answer_grammar
from workers.process.prompts import allowed_tokens, pooled_prompts

ROOT = Path(__file__).parents[3]
SOURCES = [
    path for folder in ("engine", "grammar", "process") for path in sorted((ROOT / "workers" / folder).rglob("*.py"))
]
FIELD_AT: dict[str, int | None] = {
    "ConstraintFailed": 1,
    "Failed": 3,
    "GrammarMatcher": 2,
    "GrammarRefused": None,
    "PromptRefused": 2,
    "RequestRefused": 2,
    "SequenceFailure": 3,
    "ToolGrammarError": None,
    "_check_length": 2,
    "_check_tokens": 0,
    "_encode": 2,
    "_invalid": 0,
    "_refused": 3,
    "failed_query": 3,
    "require": 0,
    "unsupported": 1,
}
"""The functions and classes that take a field of the request, and the position of that argument. None: they take a text
only."""
PASSED_ON = {
    "build.field",
    "built.field",
    "error.field",
    "field",
    "name",
    "refusal.field",
    "refused.field",
    "self._field",
}
"""Expressions for a field that another place of the code, which is collected as well, has given."""
CONSTANTS = {"FIELD": allowed_tokens.FIELD, "TOOLS_FIELD": answer_grammar.FIELD, "EMBEDDINGS": EMBEDDINGS}
CONSTANTS |= {name: getattr(pooled_prompts, name) for name in ("DIMENSIONS", "INSTRUCTION", "PROMPT_NAME")}
CONSTANTS |= {"SPARSE": SPARSE, "SPARSE_KEEP": SPARSE_KEEP}
CONSTANTS |= dict.fromkeys(("_field(error.path)", "_field(path)"), answer_grammar.FIELD)
"""Expressions that are one field, or a part of it."""
OF_DIALECTS = {"grammar.field", "path"}
OF_DIALECTS |= {
    "_field(source, index)",
    "_field(source, order[0])",
    "image.field",
    "_field(source, 0)",
    "images.images[0].field",
    "request.images.images[-1].field",
}
"""Expressions for the field of a grammar or of an image, which the dialect gave."""
_QUOTED = re.compile(r"`([^`{}]+)`")
_BARE = re.compile(r"(?<![`\w.-])[a-z]+(?:_[a-z]+)+(?![`\w])")


@dataclass(frozen=True)
class Place:
    """One place where an error is made."""

    at: str
    fields: frozenset[str]
    texts: tuple[str, ...]


def places() -> Iterator[Place]:
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for call in ast.walk(function):
                    if isinstance(call, ast.Call) and _name(call.func) in FIELD_AT:
                        yield _place(path, function, call)


def _place(path: Path, function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call) -> Place:
    at = f"{path.relative_to(ROOT)}:{call.lineno}"
    position = FIELD_AT[_name(call.func)]
    given = next((each.value for each in call.keywords if each.arg == "field"), None)
    if position is not None and len(call.args) > position:
        given = call.args[position]
    statements = [each for each in function.body if not isinstance(each, ast.Expr)]
    texts = tuple(text for each in statements for node in ast.walk(each) for text in _texts(node))
    return Place(at, frozenset(_fields(given, function, at)), texts)


def _fields(given: ast.expr | None, function: ast.FunctionDef | ast.AsyncFunctionDef, at: str) -> Iterator[str]:
    if given is None:
        return
    if isinstance(given, ast.Constant):
        if given.value:
            yield str(given.value)
        return
    expression = ast.unparse(given)
    assert expression in {*PASSED_ON, *OF_DIALECTS, *CONSTANTS}, f"{at}: from where does {expression!r} come?"
    if expression in CONSTANTS:
        yield CONSTANTS[expression]
    elif expression in PASSED_ON:
        names = {str(node.value) for node in ast.walk(function) if isinstance(node, ast.Constant)}
        yield from names & (set(Sampling.__struct_fields__) | {"messages", "tools"})


def _texts(node: ast.AST) -> Iterator[str]:
    """The text of an error, with `{}` for what is put in."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
        yield node.value


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def quoted(text: str) -> list[str]:
    """The names in backticks."""
    return [name.partition(".")[0].partition("[")[0] for name in _QUOTED.findall(text)]


def bare(text: str) -> list[str]:
    """The names of fields that are not in backticks."""
    return _BARE.findall(text)
