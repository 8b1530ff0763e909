"""Mutation operators: the small changes that each kind of syntax node allows. Pure.

Every operator makes a change that is likely to run, as a change that always crashes says nothing about the tests.
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
"""Each comparison, and the one that replaces it."""
NEGATIONS = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
"""Comparisons whose replacement is their negation."""
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}

Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Edit: TypeAlias = tuple[int, int, str]
"""Start and end in bytes, and the new text."""


class ModuleSource:
    """A module's source, with the positions of its syntax nodes in bytes."""

    def __init__(self, source: bytes) -> None:
        self.bytes = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def range(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return the first byte of a node and the byte after it."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: ast.expr | ast.stmt) -> str:
        """Return the text of a node."""
        start, end = self.range(node)
        return self.bytes[start:end].decode()

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Edit]:
        """Replace the operator `old` between two expressions. Comments between them are left alone."""
        start, end = self.range(left)[1], self.range(right)[0]
        pattern = re.escape(old).replace(r"\ ", r"\s+")
        for found in re.finditer(rb"#[^\n]*|(" + pattern.encode() + rb")", self.bytes[start:end]):
            if found[1] is not None:
                yield start + found.start(1), start + found.end(1), new
                return


def comparison(node: ast.Compare, source: ModuleSource) -> Iterator[Edit]:
    operands = [node.left, *node.comparators]
    for number, operator in enumerate(node.ops):
        old, new = COMPARISONS[type(operator)]
        yield from source.between(operands[number], operands[number + 1], old, new)


def and_or(node: ast.BoolOp, source: ModuleSource) -> Iterator[Edit]:
    old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in zip(node.values[:-1], node.values[1:], strict=True):
        yield from source.between(left, right, old, new)


def plus_minus(node: ast.BinOp, source: ModuleSource) -> Iterator[Edit]:
    texts = [side for side in (node.left, node.right) if isinstance(side, ast.JoinedStr) or _is(side, str)]
    if type(node.op) in ARITHMETIC and not texts:
        yield from source.between(node.left, node.right, *ARITHMETIC[type(node.op)])


def plus_minus_in_place(node: ast.AugAssign, source: ModuleSource) -> Iterator[Edit]:
    if type(node.op) in ARITHMETIC:
        yield from source.between(node.target, node.value, *ARITHMETIC[type(node.op)])


def without_not_or_minus(node: ast.UnaryOp, source: ModuleSource) -> Iterator[Edit]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield *source.range(node), f"({source.text(node.operand)})"


def constant(node: ast.Constant, source: ModuleSource) -> Iterator[Edit]:
    if isinstance(node.value, bool):
        yield *source.range(node), str(not node.value)
    elif isinstance(node.value, int | float):
        yield *source.range(node), repr(node.value + 1)


def swapped_function(node: ast.Call, source: ModuleSource) -> Iterator[Edit]:
    if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        yield *source.range(node.func), FUNCTIONS[node.func.id]


def negated_condition(node: ast.If | ast.While | ast.IfExp, source: ModuleSource) -> Iterator[Edit]:
    yield from _negated(node.test, source)


def negated_filter(node: Comprehension, source: ModuleSource) -> Iterator[Edit]:
    for generator in node.generators:
        for condition in generator.ifs:
            yield from _negated(condition, source)


def returned_none(node: ast.Return, source: ModuleSource) -> Iterator[Edit]:
    if node.value is not None and not (_is(node.value, bool) or _is(node.value, type(None))):
        yield *source.range(node.value), "None"


def break_continue(node: ast.Break | ast.Continue, source: ModuleSource) -> Iterator[Edit]:
    yield *source.range(node), "continue" if isinstance(node, ast.Break) else "break"


def deleted(node: ast.stmt, source: ModuleSource) -> Iterator[Edit]:
    yield *source.range(node), "pass"


OPERATORS: dict[type[ast.AST], dict[str, Callable[..., Iterator[Edit]]]] = {
    ast.Compare: {"comparison": comparison},
    ast.BoolOp: {"and/or": and_or},
    ast.BinOp: {"plus/minus": plus_minus},
    ast.UnaryOp: {"not or minus removed": without_not_or_minus},
    ast.Constant: {"constant": constant},
    ast.Call: {"function swapped": swapped_function},
    ast.If: {"condition negated": negated_condition},
    ast.While: {"condition negated": negated_condition},
    ast.IfExp: {"condition negated": negated_condition},
    ast.ListComp: {"condition negated": negated_filter},
    ast.SetComp: {"condition negated": negated_filter},
    ast.DictComp: {"condition negated": negated_filter},
    ast.GeneratorExp: {"condition negated": negated_filter},
    ast.Return: {"None returned": returned_none},
    ast.Break: {"break/continue": break_continue},
    ast.Continue: {"break/continue": break_continue},
    ast.AugAssign: {"plus/minus": plus_minus_in_place, "statement deleted": deleted},
    ast.Assign: {"statement deleted": deleted},
    ast.Expr: {"statement deleted": deleted},
    ast.Delete: {"statement deleted": deleted},
    ast.Raise: {"statement deleted": deleted},
}
"""The operators of each kind of node. Where a statement may be deleted, `bench.mutation_test.search` decides."""


def _negated(test: ast.expr, source: ModuleSource) -> Iterator[Edit]:
    """Negate a condition, unless another operator does it already."""
    removes_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    swaps = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], NEGATIONS)
    if not (removes_not or swaps or isinstance(test, ast.Constant)):
        yield *source.range(test), f"not ({source.text(test)})"


def _is(node: ast.expr, kind: type) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, kind)
