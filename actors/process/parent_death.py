"""For a child process: do not outlive the parent, even when this process hangs and cannot see its stdin end."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> bool:
    """Ask the Linux kernel to kill this process when the parent's thread that started it ends (prctl(2),
    PR_SET_PDEATHSIG). True when it will; elsewhere the end of file on stdin is the only sign.

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
