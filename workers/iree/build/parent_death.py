"""Runs a command that the kernel kills when its parent dies (Linux).

`python -I -S parent_death.py PARENT_PID [--nice=N] COMMAND...`

A compiler that outlives its killed worker would keep the cores from the worker's replacement. The signal and the
niceness are set between two execs, because a `preexec_fn` forks the parent's threads and locks.
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
        if os.getppid() != parent:  # it died before prctl
            raise SystemExit(1)
    if command[0].startswith(NICE):
        os.nice(int(command.pop(0)[len(NICE) :]))
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
