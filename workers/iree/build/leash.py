"""Runs a command that the kernel ends together with its parent.

`python -I -S leash.py PARENT_PID [--nice=N] COMMAND...`

A compiler that outlives its killed worker would keep the cores from the worker's replacement. Set here, between two
execs, because a `preexec_fn` forks the parent's threads and locks; so is the niceness by which it gives way to others.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""prctl(2), Linux only."""
NICE = "--nice="


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was told
            raise SystemExit(1)
    if command[0].startswith(NICE):
        os.nice(int(command.pop(0)[len(NICE) :]))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
