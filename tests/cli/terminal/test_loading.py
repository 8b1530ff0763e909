"""The display of loading workers: bars on a terminal, lines elsewhere, and one announcement."""

import errno
import io
import sys
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from actors.supervision.worker import WorkerState, WorkerStatus
from cli.terminal.loading import Bars, Lines, choose_display, describe
from protocol.events import Gauges, Loading


def status(state: WorkerState, name: str = "w0", **fields: Any) -> WorkerStatus:
    given = {"loading": None, "reason": "", "hello": None, "ready": None, **fields}
    return WorkerStatus(
        name=name, state=state, pid=1, incarnation=1, restarts=0, gauges=Gauges(), last_progress=0.0, **given
    )


LOADING = status(WorkerState.LOADING, loading=Loading("compile", 2, 7))


def test_lines_show_each_phase_once_and_the_announcement_once() -> None:
    output = io.StringIO()
    display = choose_display(["w0", "w1"], lambda worker: f"ask {worker.name}", Console(file=output))
    assert isinstance(display, Lines)
    with display:
        for change in (
            status(WorkerState.STARTING),
            LOADING,
            status(WorkerState.LOADING, loading=Loading("compile", 3, 7)),
            status(WorkerState.READY),
            status(WorkerState.READY, "w1"),
        ):
            display.worker_changed(change)
    assert output.getvalue().splitlines() == ["w0: starting", "w0: compile", "w0: ready", "ask w0", "w1: ready"]


def test_bars_show_progress_and_leave_only_the_announcement() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=100, color_system=None)
    display = choose_display(["w0"], lambda worker: "ask it", console)
    assert isinstance(display, Bars)
    with display:
        display.worker_changed(LOADING)
        display._progress.refresh()
        assert "2/7" in output.getvalue()
        display.worker_changed(status(WorkerState.READY))
        display.worker_changed(status(WorkerState.BACKOFF, reason="killed"))
    assert output.getvalue().count("ask it") == 1
    assert output.getvalue().rstrip().endswith("ask it")


def test_the_announcement_does_not_wait_for_the_last_worker() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=100)
    with choose_display(["w0", "w1"], lambda worker: f"ask {worker.name}", console) as display:
        display.worker_changed(status(WorkerState.READY, "w1"))
        display.worker_changed(status(WorkerState.GIVEN_UP, "w0", reason="no memory"))
        display.worker_changed(status(WorkerState.READY, "w1"))
    assert output.getvalue().count("ask w1") == 1


@pytest.mark.parametrize("terminal", [False, True])
def test_an_empty_announcement_is_requested_again(terminal: bool) -> None:
    output, announcements = io.StringIO(), iter(["", "ask it"])
    console = Console(file=output, force_terminal=terminal, width=100)
    with choose_display(["w0"], lambda _: next(announcements), console) as display:
        for _ in range(3):
            display.worker_changed(status(WorkerState.READY))
    assert output.getvalue().count("ask it") == 1


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


@pytest.mark.parametrize("terminal", [False, True], ids=["lines", "bars"])
@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "full")], ids=["no reader", "full"])
def test_a_closed_pipe_does_not_end_the_server(error: OSError, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    # What Rich does with a pipe that has broken is to the process's own output.
    monkeypatch.setattr(Console, "on_broken_pipe", lambda _: sys.exit(1))
    with capture_logs() as logged, choose_display(["w0"], lambda worker: "ask it", console) as display:
        display.worker_changed(LOADING)
        console.file = Gone(error)
        for state in (WorkerState.READY, WorkerState.BACKOFF, WorkerState.STARTING, WorkerState.READY):
            display.worker_changed(status(state))
    assert [line["event"] for line in logged] == ["display_ended"]
