"""The check process: what would stop or kill a worker is refused within its bounds, and the next grammar is checked."""

import json
import signal
import subprocess
from collections.abc import Iterator
from unittest import mock

import pytest

from protocol.request import Grammar
from tests.workers.grammar.compiling import lark
from workers.grammar import checks as checks_module
from workers.grammar.checks import GrammarChecks
from workers.grammar.refusal import GrammarRefused
from workers.grammar.vocabulary import byte_vocabulary, special_tokens

RUNAWAY = Grammar(
    "json_schema",
    json.dumps({"allOf": [{"type": "integer", "multipleOf": prime} for prime in (9973, 9967, 9949, 9941)]}),
)
OVERFLOW = lark("start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1} | "b"' for i in range(25_000)) + '\nr25000: "c"')


@pytest.fixture
def checks() -> Iterator[GrammarChecks]:
    checks = GrammarChecks(special_tokens(byte_vocabulary()))
    yield checks
    checks.close()


@pytest.mark.parametrize(
    ("grammar", "problem"), [(RUNAWAY, "takes more than 0.3 s"), (OVERFLOW, "nested too deeply")], ids=["time", "stack"]
)
def test_a_grammar_that_ends_the_process_is_refused(checks: GrammarChecks, grammar: Grammar, problem: str) -> None:
    for _ in range(2):
        with pytest.raises(GrammarRefused, match=problem):
            checks.check(grammar)
        checks.check(Grammar("json_object"))


def test_memory_is_bounded(checks: GrammarChecks) -> None:
    """The process dies of an allocation that fails, as it would of this signal."""
    checks.check(Grammar("json_object"))
    process = checks._process
    assert process is not None
    process.send_signal(signal.SIGABRT)
    process.wait()
    with (
        mock.patch.object(GrammarChecks, "_running", return_value=process),
        pytest.raises(GrammarRefused, match="too much memory"),
    ):
        checks.check(Grammar("json_object"))
    checks.check(Grammar("json_object"))


def test_a_silent_process_is_killed(checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    checks.check(Grammar("json_object"))
    process = checks._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(checks_module, "SILENCE_S", 0.1)
    with pytest.raises(GrammarRefused, match="takes more"):
        checks.check(Grammar("json_object"))
    assert process.returncode == -signal.SIGKILL


def test_a_process_that_does_not_start_is_a_refusal(checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "module_command", lambda name: ["/bin/false"])
    with pytest.raises(GrammarRefused, match="did not start"):
        checks.check(Grammar("json_object"))


def test_the_process_ends_with_its_standard_input(checks: GrammarChecks) -> None:
    checks.check(Grammar("json_object"))
    process = checks._process
    assert isinstance(process, subprocess.Popen)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 0
