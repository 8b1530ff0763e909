"""The display of loading workers: bars on a terminal, log lines elsewhere, and one announcement."""

import errno
import io
import sys
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from actors.supervision.worker import WorkerState, WorkerStatus
from cli.config.settings import Settings
from cli.terminal.loading import Bars, LogLines, choose_display, describe
from cli.terminal.ready_message import ReadyMessage
from protocol.events import Gauges, Loading


def status(state: WorkerState, name: str = "w0", **fields: Any) -> WorkerStatus:
    given = {"loading": None, "reason": "", "hello": None, "ready": None, **fields}
    return WorkerStatus(
        name=name, state=state, pid=1, incarnation=1, restarts=0, gauges=Gauges(), last_progress=0.0, **given
    )


LOADING = status(WorkerState.LOADING, loading=Loading("compile", 2, 7))


def message(*, listens: bool = True) -> ReadyMessage:
    made = ReadyMessage(Settings())
    if listens:
        made.listening("127.0.0.1", 4711)
    return made


def test_a_log_has_each_phase_once_and_the_announcement_once() -> None:
    output = io.StringIO()
    with capture_logs() as logged, choose_display(["w0", "w1"], message(), Console(file=output)) as display:
        assert isinstance(display, LogLines)
        for change in (
            status(WorkerState.STARTING),
            LOADING,
            status(WorkerState.LOADING, loading=Loading("compile", 3, 7)),
            status(WorkerState.READY),
            status(WorkerState.READY, "w1"),
            LOADING,  # of the next incarnation
        ):
            display.worker_changed(change)
    loads = {"event": "worker_loads", "log_level": "info", "worker": "w0", "phase": "compile"}
    ready = {"event": "ready", "log_level": "info", "url": "http://127.0.0.1:4711", "slots": 0}
    assert logged == [loads, ready, loads]
    assert output.getvalue() == ""


@pytest.mark.parametrize(
    ("terminals", "bars"),
    [
        (("stdout", "stderr"), "stdout"),
        (("stdout",), "stdout"),
        (("stderr",), "stderr"),
        ((), ""),
    ],
    ids=" ".join,
)
def test_bars_are_shown_on_a_terminal_alone(
    terminals: tuple[str, ...], bars: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "stderr"):
        file = io.StringIO()
        monkeypatch.setattr(file, "isatty", lambda name=name: name in terminals)
        monkeypatch.setattr(sys, name, file)
    display = choose_display(["w0"], message())
    if bars:
        assert isinstance(display, Bars)
        assert display._console.stderr == (bars == "stderr")
    else:
        assert isinstance(display, LogLines)


def test_bars_show_progress_and_leave_only_the_announcement() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=100, color_system=None)
    display = choose_display(["w0"], message(), console)
    assert isinstance(display, Bars)
    with display:
        display.worker_changed(LOADING)
        display._progress.refresh()
        assert "2/7" in output.getvalue()
        display.worker_changed(status(WorkerState.READY))
        display.worker_changed(status(WorkerState.BACKOFF, reason="killed"))
    assert output.getvalue().count("Ready:") == 1
    assert output.getvalue().rstrip().endswith("Stop it with Ctrl-C.")


def test_the_announcement_does_not_wait_for_the_last_worker() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=100)
    with choose_display(["w0", "w1"], message(), console) as display:
        display.worker_changed(status(WorkerState.READY, "w1"))
        display.worker_changed(status(WorkerState.GIVEN_UP, "w0", reason="no memory"))
        display.worker_changed(status(WorkerState.READY, "w1"))
    assert output.getvalue().count("Ready:") == 1


@pytest.mark.parametrize("terminal", [False, True])
def test_the_announcement_waits_for_the_address(terminal: bool) -> None:
    output, announced = io.StringIO(), message(listens=False)
    console = Console(file=output, force_terminal=terminal, width=100)
    with capture_logs() as logged, choose_display(["w0"], announced, console) as display:
        display.worker_changed(status(WorkerState.READY))
        assert ("Ready:" not in output.getvalue(), logged) == (True, [])
        announced.listening("127.0.0.1", 4711)
        for _ in range(2):
            display.worker_changed(status(WorkerState.READY))
    assert output.getvalue().count("Ready:") + len(logged) == 1


@pytest.mark.parametrize("terminal", [False, True])
def test_models_that_are_loaded_on_demand_are_announced_without_a_worker(terminal: bool) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=100, color_system=None, highlight=False)
    with capture_logs() as logged, choose_display([], message(), console) as display:
        display.ready_on_demand(["a", "b"])
        display.worker_changed(status(WorkerState.READY))
    if terminal:
        assert "each loaded by its first request" in output.getvalue()
        assert output.getvalue().count("Ready:") == 1
    else:
        line = {"event": "ready", "log_level": "info", "url": "http://127.0.0.1:4711", "models": ["a", "b"]}
        assert logged == [line]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (LOADING, "compile"),
        (status(WorkerState.LOADING), "loading"),
        (status(WorkerState.BACKOFF, reason="killed"), "lost: killed"),
        (status(WorkerState.GIVEN_UP, reason="five times"), "given up: five times"),
    ],
)
def test_the_state_of_a_worker_is_described(change: WorkerStatus, words: str) -> None:
    assert describe(change) == words


class Gone(io.StringIO):
    """A file on a full disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, _: str) -> int:
        raise self._error


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "full")], ids=["no reader", "full"])
def test_a_terminal_that_is_gone_does_not_end_the_server(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    # What Rich does with a pipe that has broken is to the process's own output.
    monkeypatch.setattr(Console, "on_broken_pipe", lambda _: sys.exit(1))
    with capture_logs() as logged, choose_display(["w0"], message(), console) as display:
        display.worker_changed(LOADING)
        console.file = Gone(error)
        for state in (WorkerState.READY, WorkerState.BACKOFF, WorkerState.STARTING, WorkerState.READY):
            display.worker_changed(status(state))
    assert [line["event"] for line in logged] == ["display_ended"]
