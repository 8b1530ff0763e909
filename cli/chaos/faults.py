"""What `baton chaos` can do to a worker, by name: from outside with a signal, or from within by the worker's plan."""

import random
import signal
from collections.abc import Mapping
from typing import get_args

from workers.faults.plan import LINK_FAULTS, CallFault, Fault, LinkFault, LoadFault

OUTSIDE: Mapping[str, int] = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "abort": signal.SIGABRT,
    "term": signal.SIGTERM,
}
"""`stop` suspends a process, which then hangs."""
LOADS: tuple[LoadFault, ...] = ("fail_load", "no_memory", "disk_full")
"""Not `refuse_load`: a worker that says that it can never serve is rightly given up."""
WITHIN: Mapping[str, CallFault | LoadFault | LinkFault] = {
    "raise": "raise",
    "nan": "nan",
    "slow": "slow",
    "hang": "hang",
    "kill_in_step": "kill",
    "stop_in_step": "stop",
    "abort_in_step": "abort",
    **{kind: kind for kind in LOADS},
    **{kind: kind for kind in get_args(LinkFault)},
}
"""Only a worker that is told at its start can do these to itself."""
SLOW_S = 0.05
"""What each call or message takes longer in a slow spell."""
SLOW_CALLS = 20
FIRST_MESSAGE = 60
"""Of those that a link's fault may hit: before, the worker tells of its loading."""


def within(name: str, draw: random.Random, calls: int) -> Fault:
    """A fault of `WITHIN` in one of the first `calls` calls, or messages, of a life."""
    kind = WITHIN[name]
    if kind in LOADS:
        return Fault(kind)
    call = 1 + draw.randrange(max(1, calls))
    if kind in LINK_FAULTS:
        call += FIRST_MESSAGE
    if kind in ("slow", "slow_link"):
        return Fault(kind, call, calls=SLOW_CALLS, seconds=SLOW_S)
    return Fault(kind, call)
