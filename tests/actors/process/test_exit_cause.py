"""The origin of a process's end, by its status or state."""

import signal

import pytest

from actors.process.exit_cause import Origin, of_exit, of_hang

WITHIN = ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGPIPE"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_that_asks_to_end_is_somebody_elses(name: str) -> None:
    number = signal.Signals[name]
    assert of_exit(-number, (), None) is Origin.OUTSIDE
    assert of_exit(-number, {number}, None) is Origin.UNKNOWN, "ours, which says nothing of why we sent it"


@pytest.mark.parametrize("name", WITHIN)
def test_the_signals_of_a_crash_are_its_own(name: str) -> None:
    assert of_exit(-signal.Signals[name], {signal.SIGTERM}, False) is Origin.WITHIN


@pytest.mark.parametrize("status", [0, 1, 6, 137])
def test_an_exit_is_its_own(status: int) -> None:
    assert of_exit(status, {signal.SIGKILL}, False) is Origin.WITHIN


@pytest.mark.parametrize(
    ("out_of_memory", "origin"), [(False, Origin.OUTSIDE), (True, Origin.MEMORY), (None, Origin.UNKNOWN)]
)
def test_a_kill_is_the_kernels_when_it_has_killed_for_memory(out_of_memory: bool | None, origin: Origin) -> None:
    assert of_exit(-signal.SIGKILL, (), out_of_memory) is origin
    assert of_exit(-signal.SIGKILL, {signal.SIGKILL}, out_of_memory) is Origin.UNKNOWN


@pytest.mark.parametrize(
    ("state", "origin"),
    [("T", Origin.OUTSIDE), ("t", Origin.OUTSIDE), ("R", Origin.WITHIN), ("D", Origin.WITHIN), (None, Origin.UNKNOWN)],
)
def test_a_hang_is_its_own_unless_it_is_suspended(state: str | None, origin: Origin) -> None:
    assert of_hang(state) is origin
