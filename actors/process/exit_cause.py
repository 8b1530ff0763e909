"""The origin of a worker's end: its own computation, or an action from outside. Pure.

What an operator, a supervisor or another process did from outside is no evidence against a request that the worker ran.
"""

import signal
from collections.abc import Container
from enum import StrEnum

_FROM_OUTSIDE = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Nothing that a worker computes sends itself one of these."""
STOPPED = "T"
"""The state of a process that a signal has stopped (proc_pid_stat(5))."""
_SUSPENDED = frozenset({STOPPED, "t"})
"""The second one is stopped by a debugger."""


class Origin(StrEnum):
    """The party that ended an incarnation."""

    WITHIN = "within"
    """Itself: it crashed, left, hung, or broke the protocol."""
    MEMORY = "memory"
    """The kernel, for memory: to be taken for WITHIN, for what it computes takes it."""
    OUTSIDE = "outside"
    """Somebody else: it was killed, asked to end, suspended, or its machine or network is gone."""
    MISBEHAVED = "misbehaved"
    """Itself: it sent what it was not asked for. No evidence against a request either, but it counts against the
    worker."""
    UNKNOWN = "unknown"
    """The system does not tell; to be taken for WITHIN, where it matters."""


def of_exit(status: int, sent: Container[int], out_of_memory: bool | None) -> Origin:
    """The origin of an exit. `status` is as in `subprocess` (negative is the signal that ended it), `sent` the signals
    that it got from us, `out_of_memory` whether the kernel killed for memory meanwhile (None: unknown)."""
    number = -status
    if number in sent:
        return Origin.UNKNOWN
    if number in _FROM_OUTSIDE:
        return Origin.OUTSIDE
    if number != signal.SIGKILL:
        return Origin.WITHIN
    if out_of_memory is None:
        return Origin.UNKNOWN
    return Origin.MEMORY if out_of_memory else Origin.OUTSIDE


def of_hang(state: str | None) -> Origin:
    """The origin of a hang, by the kernel's letter for the state of the process (None: unknown)."""
    if state is None:
        return Origin.UNKNOWN
    return Origin.OUTSIDE if state in _SUSPENDED else Origin.WITHIN
