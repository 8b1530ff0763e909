"""A process does not outlive its parent."""

import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.process.parent_death import LOWEST_PRIORITY, ParentWatch, tied

PATIENCE_S = 100.0
ROOT = Path(__file__).parents[3]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            pass  # the test has closed it


def test_the_end_of_the_file_calls_then_kills(pipe: tuple[int, int]) -> None:
    gone, killed = threading.Event(), threading.Event()
    ParentWatch(gone.set, kill=killed.set, descriptor=pipe[0], grace_s=0.01).start()
    os.write(pipe[1], b"whatever a parent may say")
    assert not gone.is_set()
    os.close(pipe[1])
    assert gone.wait(PATIENCE_S)
    assert killed.wait(PATIENCE_S)


def test_a_process_that_ends_by_itself_is_not_killed(pipe: tuple[int, int]) -> None:
    killed = threading.Event()
    watch = ParentWatch(lambda: watch.end(), kill=killed.set, descriptor=pipe[0], grace_s=PATIENCE_S)
    watch.start()
    os.close(pipe[1])
    watch._thread.join(PATIENCE_S)
    assert not watch._thread.is_alive()
    assert not killed.is_set()


def test_after_the_end_nobody_is_called(pipe: tuple[int, int]) -> None:
    called = threading.Event()
    watch = ParentWatch(called.set, kill=called.set, descriptor=pipe[0])
    watch.start()
    watch.end()
    os.close(pipe[1])
    watch._thread.join(PATIENCE_S)
    assert not called.is_set()


def test_after_the_end_the_waiting_thread_keeps_nothing_of_the_process(pipe: tuple[int, int]) -> None:
    called = threading.Event()
    kept = weakref.ref(called)
    watch = ParentWatch(called.set, kill=called.set, descriptor=pipe[0])
    watch.start()
    watch.end()
    del called
    assert kept() is None
    assert watch._thread.is_alive()


def test_a_descriptor_that_is_closed_is_a_parent_that_is_gone(pipe: tuple[int, int]) -> None:
    gone, killed = threading.Event(), threading.Event()
    os.close(pipe[0])
    ParentWatch(gone.set, kill=killed.set, descriptor=pipe[0], grace_s=0.0).start()
    assert gone.wait(PATIENCE_S)
    assert killed.wait(PATIENCE_S)


def test_a_bug_in_the_call_does_not_spare_the_process(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    killed = threading.Event()

    def fail() -> None:
        raise ValueError

    ParentWatch(fail, kill=killed.set, descriptor=pipe[0], grace_s=0.0).start()
    os.close(pipe[1])
    assert killed.wait(PATIENCE_S)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_tied_command_dies_with_its_parent() -> None:
    """The parent starts a command, prints its id, and is killed."""
    program = (
        "import subprocess, sys\n"
        "from actors.process.parent_death import tied\n"
        "command = [sys.executable, '-c', 'import os; print(os.getpid(), flush=True); os.read(0, 1)']\n"
        "subprocess.run(tied(command), stdin=subprocess.PIPE, check=False)\n"
    )
    reading, writing = os.pipe()  # the child's standard input stays open: only the signal can end it
    parent = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=reading, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) != parent.pid
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert parent.stdout.read() == ""  # ends only when the child, which holds the other end, is gone
    parent.stdout.close()
    os.close(reading)
    os.close(writing)


@pytest.mark.skipif(sys.platform != "linux", reason="SCHED_IDLE is Linux's")
def test_a_tied_command_in_the_background_gets_what_others_leave() -> None:
    """And so does what it starts."""
    inner = "import os; print(os.nice(0), os.sched_getscheduler(0))"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    same = [os.nice(0), os.sched_getscheduler(0)]
    for background, expected in ((True, [LOWEST_PRIORITY, os.SCHED_IDLE]), (False, same)):
        command = tied([sys.executable, "-c", outer], background=background)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert [int(word) for word in done.stdout.split()] == expected


def test_a_tied_command_is_not_started_for_a_dead_parent() -> None:
    command = tied(["/bin/echo", "started"])
    command[command.index(str(os.getpid()))] = "1"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_it_runs_without_the_project() -> None:
    """In a folder and an interpreter that have nothing but the standard library."""
    done = subprocess.run(tied(["/bin/echo", "started"]), capture_output=True, text=True, check=True, cwd="/", env={})
    assert done.stdout == "started\n"
