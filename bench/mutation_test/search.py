"""Finds all mutants of a module. Pure.

Left alone is what decides nothing or what no test can notice: annotations, decorators, options of classes, the
`strict=True` of `zip`, assertions, log lines, the texts of errors, and float constants outside of functions, which are
durations to tune. Assignments that only create a variable or an attribute are not deleted, because every later use
would crash.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bench.mutation_test.mutant import Mutant
from bench.mutation_test.operators import OPERATORS, ModuleSource

LOGGERS = ("log", "_log")
UNTOUCHED = ("annotation", "returns", "decorator_list", "type_params")
"""Fields of syntax nodes."""


@dataclass(frozen=True)
class Scope:
    """The class or function that a node is in."""

    names: tuple[str, ...] = ()
    function: bool = False
    assigned: Counter[str] = field(default_factory=Counter)
    """Number of assignments to each variable of the function."""

    def within(self, node: ast.AST) -> "Scope":
        """Return the scope of the nodes below `node`."""
        if isinstance(node, ast.ClassDef):
            return replace(self, names=(*self.names, node.name), function=False)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return Scope((*self.names, node.name), True, Counter(_assigned(node)))
        return self


def find_mutants(module: str, source: bytes) -> list[Mutant]:
    """Return the mutants of a module in the order of their position. `module` is its path."""
    return sorted(set(_visit(module, ModuleSource(source), ast.parse(source), Scope())))


def _visit(module: str, source: ModuleSource, node: ast.AST, scope: Scope) -> Iterator[Mutant]:
    if isinstance(node, ast.Assert | ast.JoinedStr) or _only_logs(node) or _is_strict(node):
        return
    for operator, edits in OPERATORS.get(type(node), {}).items():
        if operator != "statement deleted" or _may_be_deleted(node, scope):
            for start, end, text in edits(node, source):
                yield Mutant(module, start, end, text, operator, ".".join(scope.names))
    if isinstance(node, ast.Raise):
        return
    below = scope.within(node)
    for child in _children(node):
        if below.function or not _is_float(child):
            yield from _visit(module, source, child, below)


def _may_be_deleted(node: ast.AST, scope: Scope) -> bool:
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)  # a docstring, or the `...` of a protocol
    if not isinstance(node, ast.Assign):
        return True
    creates = scope.names[-1:] == ("__init__",) or not scope.function
    stored = [name for target in node.targets for name in ast.walk(target) if _is_variable(name)]
    return not creates and all(scope.assigned[ast.unparse(name)] > 1 for name in stored)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in UNTOUCHED or (isinstance(node, ast.ClassDef) and name == "keywords"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _assigned(function: ast.AST) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif _is_variable(node):
            yield ast.unparse(node)


def _is_variable(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _only_logs(node: ast.AST) -> bool:
    """The node is a log line, or a condition of log lines alone."""
    if isinstance(node, ast.If):
        return all(map(_only_logs, [*node.body, *node.orelse]))
    return _is_log_line(node)


def _is_log_line(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    method = call.func if isinstance(call, ast.Call) else None
    owner = method.value if isinstance(method, ast.Attribute) else None
    return ast.unparse(owner).rpartition(".")[2] in LOGGERS if owner is not None else False


def _is_strict(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _is_float(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)
