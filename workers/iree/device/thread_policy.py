"""The scheduling policy of the thread that waits for a device's compute threads."""

import contextlib
import os
from collections.abc import Collection


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


def compute_like(threads: Collection[int]) -> None:
    """Undo `yield_to_compute_threads` if the given compute threads, of a device of this thread, have another policy:
    those of a further device are about to inherit that of the calling thread."""
    if not threads or not hasattr(os, "SCHED_BATCH"):
        return
    with contextlib.suppress(OSError):  # as above
        plain = all(os.sched_getscheduler(thread) == os.SCHED_OTHER for thread in threads)
        if plain and os.sched_getscheduler(0) == os.SCHED_BATCH:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
