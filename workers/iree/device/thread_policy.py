"""The scheduling policy of the thread that waits for a device's compute threads."""

import contextlib
import os
import threading

_yielding = threading.local()
"""Has `here` set on threads that `yield_to_compute_threads` has given another policy."""


def yield_to_compute_threads() -> None:
    """Have the calling thread not preempt another one when it is woken: it gets the next core that is free.

    For Linux, whose scheduler lets a woken thread preempt the one that woke it. IREE's wait for a result then spins
    until the compute thread, which still has to leave the wait, gets a core again: milliseconds (docs/adr/0044).
    Compute threads inherit the policy, so they must be started before.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return  # another system
    with contextlib.suppress(OSError):  # a sandbox may forbid either call; steps are slower then
        if os.sched_getscheduler(0) == os.SCHED_OTHER:  # the default
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            _yielding.here = True


def stop_yielding() -> None:
    """Undo what `yield_to_compute_threads` has done: compute threads that are started inherit this thread's policy."""
    if not getattr(_yielding, "here", False):
        return  # it is the default, or somebody else's choice
    _yielding.here = False
    with contextlib.suppress(OSError):  # as above
        if os.sched_getscheduler(0) == os.SCHED_BATCH:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
