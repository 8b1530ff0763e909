"""Grammars that run into the limits: they are remembered, and hold back the new ones of their client alone."""

from collections.abc import Iterator

import pytest

from protocol.request import Grammar
from workers.grammar.check_process import CheckResult
from workers.grammar.checks import GrammarChecks
from workers.grammar.compile_credit import CompileCredit
from workers.grammar.compiler import GrammarCompiler
from workers.grammar.refusal import GrammarRefused
from workers.grammar.runaway_limit import EACH_S, FREE, MAX_CLIENTS, RunawayLimit
from workers.grammar.source import llguidance_grammar
from workers.grammar.vocabulary import SpecialTokens, byte_vocabulary


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Checks(GrammarChecks):
    """Checks without a process: a regex of `r` is a runaway."""

    def __init__(self, special: SpecialTokens, credit: CompileCredit) -> None:
        super().__init__(special, credit)
        self.checked: list[str] = []

    def check(self, grammar: Grammar) -> CheckResult:
        self.checked.append(grammar.source)
        if grammar.source.startswith("r"):
            raise GrammarRefused("it takes more than 0.3 s to compile", runaway=True)
        return CheckResult(1, 0.0, llguidance_grammar(grammar))


class Compiler(GrammarCompiler):
    def __init__(self, clock: Clock) -> None:
        self.checks: Checks | None = None
        super().__init__(byte_vocabulary, self._make, RunawayLimit(clock))

    def _make(self, special: SpecialTokens, credit: CompileCredit) -> Checks:
        self.checks = Checks(special, credit)
        return self.checks

    def sent(self, source: str, client: str | None = "a") -> GrammarRefused | None:
        try:
            self.matcher(Grammar("regex", source, "guided_regex"), client=client)
        except GrammarRefused as error:
            return error
        return None

    def run_away(self, count: int, client: str | None = "a") -> None:
        for index in range(count):
            refused = self.sent(f"r{index}{client}", client)
            assert refused is not None
            assert refused.runaway


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def compiler(clock: Clock) -> Iterator[Compiler]:
    made = Compiler(clock)
    yield made
    made.close()


def test_a_client_is_held_back_after_too_many(compiler: Compiler, clock: Clock) -> None:
    compiler.run_away(FREE - 1)
    assert compiler.sent("ab") is None
    compiler.run_away(FREE)
    held = compiler.sent("cd")
    assert held is not None
    assert held.retry_after_s == EACH_S
    assert not held.runaway
    clock.now += EACH_S
    assert compiler.sent("cd") is None
    assert compiler.sent("r-later") is not None
    assert (held := compiler.sent("ef")) is not None
    assert held.retry_after_s == EACH_S, "one more in each such time"


def test_other_clients_and_known_grammars_are_not_held_back(compiler: Compiler) -> None:
    assert compiler.sent("ab") is None
    compiler.run_away(FREE)
    assert compiler.sent("ab") is None
    assert compiler.sent("cd", "b") is None
    assert compiler.sent("cd") is None, "another client had it compiled"
    assert compiler.sent("ef", None) is None, "a sequence that goes on has no client"


def test_a_runaway_is_remembered(compiler: Compiler) -> None:
    for _ in range(5 * FREE):
        compiler.run_away(1)
    assert compiler.checks is not None
    assert compiler.checks.checked == ["r0a"]
    assert compiler.sent("ab") is None, "it counts once"


def test_a_client_is_forgotten_after_a_time(clock: Clock) -> None:
    limit = RunawayLimit(clock)
    for _ in range(FREE):
        limit.count("a")
    clock.now += FREE * EACH_S
    for _ in range(FREE - 1):
        limit.count("a")
    assert limit.wait_s("a") == 0


def test_only_so_many_clients_are_remembered(clock: Clock) -> None:
    limit = RunawayLimit(clock)
    for _ in range(FREE):
        limit.count("first")
    assert limit.wait_s("first")
    for index in range(MAX_CLIENTS):
        limit.count(str(index))
    assert limit.wait_s("first") == 0
