"""The mutants of small modules: each operator, and what is left alone."""

import ast
import textwrap

import pytest

from bench.mutation_test.mutant import Mutant
from bench.mutation_test.search import find_mutants


def changes(source: str) -> list[str]:
    """The changed lines of all mutants, which must all be valid Python."""
    text = textwrap.dedent(source).encode()
    found = find_mutants("m.py", text)
    for mutant in found:
        ast.parse(mutant.apply(text))
    return [mutant.change(text)[1] for mutant in found]


def mutants_of(expression: str) -> list[str]:
    return changes(f"x = {expression}")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a < b", ["a <= b"]),
        ("a <= b", ["a < b"]),
        ("a > b", ["a >= b"]),
        ("a >= b", ["a > b"]),
        ("a == b", ["a != b"]),
        ("a is not  b", ["a is b"]),
        ("a is b", ["a is not b"]),
        ("a not in b", ["a in b"]),
        ("a < b <= c", ["a <= b <= c", "a < b < c"]),
        ("(a) < (b)", ["(a) <= (b)"]),
        ("a and b or c", ["a or b or c", "a and b and c"]),
        ("a or b or c", ["a and b or c", "a or b and c"]),
        ("band + bor", ["band - bor"]),
        ("a - b", ["a + b"]),
        ("a * b", []),
        ("'a' + b", []),
        ("-a", ["(a)"]),
        ("not a", ["(a)"]),
        ("3", ["4"]),
        ("True", ["False"]),
        ("'3'", []),
        ("min(a, b)", ["max(a, b)"]),
        ("any(a)", ["all(a)"]),
        ("one.min(a, b)", []),
        ("a if b else c", ["a if not (b) else c"]),
        ("a if not b else c", ["a if (b) else c"]),
        ("a if b is c else d", ["a if b is not c else d"]),
        ("[a for a in b if a]", ["[a for a in b if not (a)]"]),
        ("zip(a, b, strict=True)", []),
        ("f'{a + 1}'", []),
        ("'ß' if a < b else c", ["'ß' if not (a < b) else c", "'ß' if a <= b else c"]),
    ],
)
def test_an_expression_has_these_mutants(expression: str, expected: list[str]) -> None:
    assert sorted(mutants_of(expression)) == sorted(f"x = {mutant}" for mutant in expected)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("return a", ["return None"]),
        ("return None", []),
        ("return False", ["return True"]),
        ("a += b", ["a -= b", "pass"]),
        ("a |= b", ["pass"]),
        ("self.a = b", ["pass"]),
        ("a = b", []),
        ("count = b", ["pass"]),
        ("del a[b]", ["pass"]),
        ("raise Gone(a + 1)", ["pass"]),
        ("a.close()", ["pass"]),
        ("log.info(a + 1)", []),
        ("self._log.info('event', count=1)", []),
        ("if count > 1: log.info('event')", []),
        ("assert a < b", []),
        ("a: int = b", []),
        ("if a: b()", ["if not (a): b()", "if a: pass"]),
    ],
)
def test_a_statement_has_these_mutants(statement: str, expected: list[str]) -> None:
    """`count` has a value without its assignment, which can therefore be deleted."""
    found = changes(f"def method(self, count):\n    {statement}\n")
    assert sorted(found) == sorted(expected)


def test_a_loop_is_left_or_continued() -> None:
    found = changes(
        """
        for a in b:
            continue
        while a:
            break
        """
    )
    assert found == ["break", "while not (a):", "continue"]


def test_what_decides_nothing_is_left_alone() -> None:
    source = '''
        """Docstring."""
        from a import b

        LIMIT_S = 0.5
        LIMIT = 3

        @decorated(1)
        class One(Struct, frozen=True, gc=False):
            """Docstring."""

            size: Annotated[int, 4] = 5

            def __init__(self, size: Bounded[6]) -> Optional[7]:
                """Docstring."""
                self.size = size
                self.delay_s = 0.25

            @property
            def nothing(self) -> Never: ...
    '''
    assert changes(source) == ["LIMIT = 4", "size: Annotated[int, 4] = 6", "self.delay_s = 1.25"]


def test_a_mutant_knows_its_place() -> None:
    source = b"class One:\n    def two(self):\n        # a and b\n        return (self\n                < 3)\n"
    found = find_mutants("m.py", source)
    assert {mutant.where for mutant in found} == {"One.two"}
    mutant = next(mutant for mutant in found if mutant.operator == "comparison")
    assert mutant.line(source) == 5
    assert mutant.change(source) == ("< 3)", "<= 3)")
    assert mutant.diff(source).splitlines()[-2:] == ["-                < 3)", "+                <= 3)"]
    none = next(mutant for mutant in found if mutant.operator == "None returned")
    assert none.change(source) == ("return (self < 3)", "return (None)")


def test_the_order_is_that_of_the_module() -> None:
    found = find_mutants("m.py", b"a = 1 + 2\nb = c < 3\n")
    assert [mutant.start for mutant in found] == sorted(mutant.start for mutant in found)
    assert found[0] == Mutant("m.py", 4, 5, "2", "constant", "")
