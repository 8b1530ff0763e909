"""The check process: what would stop or kill a worker is refused within its bounds, and the next grammar is checked."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import psutil
import pytest

from protocol.request import Grammar
from tests.workers.grammar.compiling import lark
from workers.grammar import checks as checks_module
from workers.grammar.check_process import CHECK_CPU_S, CheckEnded, CheckReply, CheckResult
from workers.grammar.checks import GrammarChecks
from workers.grammar.compile_credit import MAX_CREDIT_S, REFILL, CompileCredit
from workers.grammar.priority import NICENESS, processor_time, run_demoted
from workers.grammar.refusal import GrammarRefused
from workers.grammar.vocabulary import byte_vocabulary, special_tokens

RUNAWAY = Grammar(
    "json_schema",
    json.dumps({"allOf": [{"type": "integer", "multipleOf": prime} for prime in (9973, 9967, 9949, 9941)]}),
)
RULES = 8_000
OVERFLOW = lark("start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1} | "b"' for i in range(RULES)) + f'\nr{RULES}: "c"')
"""Twice what the stack of a check holds, and a fifth of the time that one may take."""


class Credit(CompileCredit):
    """Credit with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)

    @property
    def usual_s(self) -> float:
        """So long that no check of a test is demoted for the load of the machine."""
        return 30.0 if self.seconds else 0.0


@pytest.fixture
def credit() -> Credit:
    return Credit()


@pytest.fixture
def checks(credit: Credit) -> Iterator[GrammarChecks]:
    checks = GrammarChecks(special_tokens(byte_vocabulary()), credit)
    yield checks
    checks.close()


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [(RUNAWAY, "takes more than 0.3 s"), (OVERFLOW, "nested too deeply")],
    ids=["time", "stack"],
)
def test_a_grammar_that_ends_the_process_is_refused(checks: GrammarChecks, grammar: Grammar, problem: str) -> None:
    for _ in range(2):
        with pytest.raises(GrammarRefused, match=problem):
            checks.check(grammar)
        checks.check(Grammar("json_object"))


def test_the_error_of_a_large_schema_is_reported_though_its_place_takes_long_to_find(checks: GrammarChecks) -> None:
    properties: dict[str, Any] = {f"p{index}": {"$ref": "#/$defs/big"} for index in range(200)}
    schema = {
        "$defs": {"big": {"enum": [f"value {index}" for index in range(3000)]}},
        "properties": properties | {"last": {"format": "moon"}},
    }
    with pytest.raises(GrammarRefused, match="Unknown format: moon"):
        checks.check(Grammar("json_schema", json.dumps(schema)))


def test_a_grammar_beyond_the_bound_of_its_text_is_refused(checks: GrammarChecks) -> None:
    """A grammar of many tools may be, which a worker makes itself."""
    with pytest.raises(GrammarRefused, match="too large"):
        checks.check(lark("start: " + "x" * (1 << 19)))
    checks.check(Grammar("json_object"))


def test_a_child_that_dies_costs_a_fork(checks: GrammarChecks) -> None:
    """The process that has the vocabulary goes on."""
    checks.check(Grammar("json_object"))
    process, child = checks._process, checks._child
    with pytest.raises(GrammarRefused):
        checks.check(OVERFLOW)
    checks.check(Grammar("json_object"))
    assert checks._process is process
    assert checks._child != child


def test_a_child_that_dies_between_two_grammars_changes_no_result(checks: GrammarChecks) -> None:
    """Its successor reads the first one."""
    grammars = [lark(f'start: "{letter}"') for letter in "abcd"]
    expected = [checks.check(grammar).source for grammar in grammars]
    assert len({*expected}) == len(grammars)
    assert checks._process is not None
    (child,) = psutil.Process(checks._process.pid).children()
    child.kill()
    psutil.wait_procs([child], timeout=10)
    assert [checks.check(grammar).source for grammar in grammars] == expected


def test_a_child_of_low_priority_that_dies_while_it_is_idle_is_replaced(checks: GrammarChecks, credit: Credit) -> None:
    credit.spend(MAX_CREDIT_S)
    checks.check(Grammar("json_object"))
    assert checks._demoted
    child = psutil.Process(checks._child)
    child.kill()
    psutil.wait_procs([child], timeout=10)
    credit.now += MAX_CREDIT_S / REFILL
    checks.check(Grammar("json_object"))
    assert not checks._demoted


def test_nothing_but_grammars_is_sent_for_a_child_that_died_before_it_was_replaced(
    checks: GrammarChecks, credit: Credit
) -> None:
    """A child reads ahead. One that ends at a line would take the grammar that follows with it."""
    credit.spend(MAX_CREDIT_S)
    checks.check(Grammar("json_object"))
    child = psutil.Process(checks._child)
    child.kill()
    psutil.wait_procs([child], timeout=10)
    credit.now += MAX_CREDIT_S / REFILL
    with mock.patch.object(checks, "_send", wraps=checks._send) as send:
        checks.check(Grammar("json_object"))
    assert send.call_count == 1


def test_only_a_child_is_demoted_while_the_next_one_starts(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 0 would be the worker itself."""
    checks.check(Grammar("json_object"))
    child, receive, sent = psutil.Process(checks._child), checks._receive, checks._send
    demoted: list[int] = []

    def send_to_the_dead(line: bytes) -> None:
        child.kill()
        psutil.wait_procs([child], timeout=10)
        sent(line)

    def receive_late(seconds: float) -> CheckReply | None:
        return receive(seconds) if checks._child or seconds > 1.0 else None

    monkeypatch.setattr(Credit, "usual_s", 0.5)
    monkeypatch.setattr(checks, "_receive", receive_late)
    monkeypatch.setattr(checks, "_send", send_to_the_dead)
    monkeypatch.setattr(checks_module, "demote", demoted.append)
    assert checks.check(Grammar("regex", "[ab]")).source
    assert demoted == [checks._child]


def test_the_result_has_the_grammar_and_its_cost(checks: GrammarChecks) -> None:
    result = checks.check(Grammar("regex", "[ab]"))
    assert "[ab]" in result.source
    assert result.cpu_s > 0


def test_memory_is_bounded(checks: GrammarChecks) -> None:
    """The child dies of an allocation that fails, as it would of this signal."""
    checks.check(Grammar("json_object"))
    child = psutil.Process(checks._child)
    assert child.rlimit(psutil.RLIMIT_AS) == (1 << 30, 1 << 30)
    used = sum(child.cpu_times()[:2])

    def abort_while_it_compiles() -> None:
        while sum(child.cpu_times()[:2]) - used < CHECK_CPU_S / 10:
            time.sleep(0.001)
        child.send_signal(signal.SIGABRT)

    thread = threading.Thread(target=abort_while_it_compiles)
    thread.start()
    with pytest.raises(GrammarRefused, match="too much memory"):
        checks.check(RUNAWAY)
    thread.join()
    checks.check(Grammar("json_object"))


@pytest.mark.parametrize("stopped", ["child", "process"])
def test_a_silent_process_is_killed(
    checks: GrammarChecks, credit: Credit, monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    checks.check(Grammar("json_object"))
    process, child = checks._process, checks._child
    assert process is not None
    monkeypatch.setattr(checks_module, "SILENCE_S", 0.5)
    credit.spend(MAX_CREDIT_S)
    os.kill(child, signal.SIGSTOP)
    if stopped == "process":
        process.send_signal(signal.SIGSTOP)
    with pytest.raises(GrammarRefused, match="takes more") as caught:
        checks.check(Grammar("json_object"))
    assert not caught.value.runaway, "the grammar is not the cause, and may be sent again"
    assert process.returncode == (-signal.SIGKILL if stopped == "process" else None)
    monkeypatch.undo()
    checks.check(Grammar("json_object"))


def test_a_grammar_that_gets_little_of_a_core_is_waited_for(
    checks: GrammarChecks, credit: Credit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its low priority, on a busy machine, a grammar that may be used takes long."""
    checks.check(Grammar("json_object"))
    child = checks._child
    times: list[float] = []

    def used(pid: int) -> float:
        times.append(len(times) / 100)
        if len(times) == 4:
            os.kill(pid, signal.SIGCONT)
            monkeypatch.setattr(checks_module, "SILENCE_S", 10.0)
        return times[-1]

    monkeypatch.setattr(checks_module, "processor_time", used)
    monkeypatch.setattr(checks_module, "SILENCE_S", 0.01)
    credit.spend(MAX_CREDIT_S)
    os.kill(child, signal.SIGSTOP)
    assert checks.check(Grammar("regex", "[ab]")).source
    assert checks._child == child


def test_a_process_that_does_not_start_is_a_refusal(checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "module_command", lambda name: ["/bin/false"])
    with pytest.raises(GrammarRefused, match="did not start: it ended with 1"):
        checks.check(Grammar("json_object"))


def test_the_process_ends_with_its_standard_input(checks: GrammarChecks) -> None:
    checks.check(Grammar("json_object"))
    process = checks._process
    child = psutil.Process(checks._child)
    assert isinstance(process, subprocess.Popen)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    assert not child.is_running()


def test_a_check_can_be_ended_from_another_thread(checks: GrammarChecks, credit: Credit) -> None:
    credit.spend(MAX_CREDIT_S)
    checks.check(Grammar("json_object"))

    def kill_while_it_compiles(*_: Any) -> float:
        checks.kill()
        return 0.0

    with mock.patch.object(checks, "_demote", side_effect=kill_while_it_compiles), pytest.raises(GrammarRefused):
        checks.check(RUNAWAY)


def priority(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


def test_a_grammar_that_takes_longer_than_the_credit_is_demoted(checks: GrammarChecks, credit: Credit) -> None:
    usual = priority(0)
    checks.check(Grammar("json_object"))
    first = checks._child
    assert priority(first) == usual
    credit.spend(MAX_CREDIT_S)
    checks.check(Grammar("json_object"))
    assert priority(first) == max(usual, NICENESS)
    if sys.platform == "linux":
        assert os.sched_getscheduler(first) == os.SCHED_IDLE
    credit.now += MAX_CREDIT_S / REFILL
    checks.check(Grammar("json_object"))
    assert checks._child != first, "a process cannot raise its own priority"
    assert priority(checks._child) == usual
    if sys.platform == "linux":
        assert os.sched_getscheduler(checks._child) == os.sched_getscheduler(0)
    assert not psutil.pid_exists(first)


def test_credit_is_spent_and_refilled(credit: Credit) -> None:
    credit.spend(MAX_CREDIT_S / 2)
    assert credit.seconds == pytest.approx(MAX_CREDIT_S / 2)
    credit.spend(1.0)
    assert credit.seconds == 0
    credit.now += 0.1
    assert credit.seconds == pytest.approx(0.1 * REFILL)
    credit.now += 1000.0
    assert credit.seconds == MAX_CREDIT_S


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the time is not known")
def test_a_grammar_keeps_its_priority_while_it_has_no_core(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks.check(Grammar("json_object"))
    child, waits = checks._child, []
    os.kill(child, signal.SIGSTOP)

    def wait(seconds: float) -> CheckResult | CheckEnded | None:
        waits.append(seconds)
        if len(waits) == 3:
            os.kill(child, signal.SIGCONT)
            return result(30.0)
        return None

    result = checks._result
    monkeypatch.setattr(checks, "_result", wait)
    checks.check(Grammar("regex", "[ab]"))
    assert len(waits) == 3
    assert priority(child) == priority(0)


def test_the_processor_time_of_a_process_that_has_ended_is_unknown() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert processor_time(process.pid) == math.inf
    assert processor_time(0) == math.inf, "it is not that of the caller"


@pytest.mark.skipif(sys.platform != "linux", reason="the priority of a thread is Linux's")
def test_what_is_demoted_runs_on_a_thread_of_low_priority() -> None:
    before = priority(0)
    assert run_demoted(lambda: priority(threading.get_native_id())) == max(before, NICENESS)
    assert priority(threading.get_native_id()) == before


def test_the_error_of_a_demoted_thread_is_raised() -> None:
    def fail() -> None:
        raise SystemError("a panic")

    with pytest.raises(SystemError, match="a panic"):
        run_demoted(fail)
