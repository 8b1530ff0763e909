"""Ends a child process with its parent. Imports the standard library alone, because it is a program as well:

`python -I -S parent_death.py PARENT_PID [--background] COMMAND...` runs a command that the kernel ends together with
its parent (`tied`). A compiler that outlived its killed worker would keep the cores from the worker's replacement. This
and the priority are set between two execs, because a `preexec_fn` forks the parent's threads and locks.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

PR_SET_PDEATHSIG = 1
BACKGROUND = "--background"
LOWEST_PRIORITY = 19
_READ_BYTES = 4096


def die_with_parent() -> bool:
    """Ask the Linux kernel to kill this process when the parent's thread that started it ends (prctl(2),
    PR_SET_PDEATHSIG). True when it will; elsewhere the end of file on stdin is the only sign. Raises `OSError`.

    Called by the child itself, early: between fork and exec nothing but system calls is safe in a threaded parent. A
    parent that is gone by then is noticed by its stdin pipe. The parent must spawn from a thread that lives as long as
    it does, such as the one of its event loop.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return True


class ParentWatch:
    """Waits on a thread of its own for the end of a pipe that the parent holds open (stdin, by default), so that it
    works when everything else is stuck."""

    def __init__(
        self,
        on_gone: Callable[[], None],
        *,
        descriptor: int = 0,
        grace_s: float = 5.0,
        kill: Callable[[], None],
    ) -> None:
        """`on_gone` is called at the end of the file, on the watching thread, and `kill` `grace_s` seconds later."""
        self._on_gone = on_gone
        self._descriptor = descriptor
        self._grace_s = grace_s
        self._kill = kill
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="parent-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """The process ends by itself: there is nothing left to kill. What is called is released, which the thread would
        keep for as long as the parent lives."""
        self._ended.set()
        self._on_gone = self._kill = _nothing

    def _run(self) -> None:
        try:
            while os.read(self._descriptor, _READ_BYTES):
                pass
        except OSError:  # closed from the start: no parent holds the other end
            pass
        if self._ended.is_set():
            return
        try:
            self._on_gone()
        finally:
            if not self._ended.wait(self._grace_s):
                self._kill()


def _nothing() -> None:
    pass


def tied(command: Sequence[str], *, background: bool = False) -> list[str]:
    """Return the command line that runs a command, which must be a path, so that it ends with this process (on Linux).

    In the `background` it has the lowest priority, and on Linux the processor time that others leave (SCHED_IDLE): a
    thread of a higher priority takes its core at once when it is woken, which is not so for a process that is only
    nice. The processes that it starts inherit this.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *([BACKGROUND] if background else []), *command]


def main(parent: int, command: list[str]) -> None:
    """Become the command, tied to that parent."""
    try:
        if die_with_parent() and os.getppid() != parent:  # it died before the request
            raise SystemExit(1)
    except OSError:
        pass  # a sandbox without this call: it may outlive its parent
    if command[0] == BACKGROUND:
        command.pop(0)
        _yield_to_others()
    os.execv(command[0], command)


def _yield_to_others() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    if sys.platform == "linux":
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError:
            pass  # a sandbox without this call: it is nice at least


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
