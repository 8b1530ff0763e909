"""The faults of `baton chaos` by name: signals to a worker's process, and faults that a worker injects into itself."""

import random
import signal
from collections.abc import Mapping
from typing import get_args

from workers.faults.plan import LINK_FAULTS, CallFault, Fault, LinkFault, LoadFault

SIGNALS: Mapping[str, int] = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "abort": signal.SIGABRT,
    "term": signal.SIGTERM,
}
"""Faults from outside, which any server can be given. `stop` suspends the process, so that the worker hangs."""
LOAD_FAULTS: tuple[LoadFault, ...] = ("fail_load", "no_memory", "disk_full")
"""`refuse_load` is not one of them: a worker that reports that it can never serve is given up, as it should be."""
PLANNED: Mapping[str, CallFault | LoadFault | LinkFault] = {
    "raise": "raise",
    "nan": "nan",
    "slow": "slow",
    "hang": "hang",
    "kill_in_step": "kill",
    "stop_in_step": "stop",
    "abort_in_step": "abort",
    **{kind: kind for kind in LOAD_FAULTS},
    **{kind: kind for kind in get_args(LinkFault)},
}
"""Faults from within, which a worker injects into itself according to the plan that it is started with."""
SLOW_S = 0.05
"""The delay of each call or message while a worker is slow."""
SLOW_CALLS = 20
FIRST_MESSAGE = 60
"""The first message that a link fault may hit. Earlier ones report the progress of the load."""


def planned_fault(name: str, rng: random.Random, calls: int) -> Fault:
    """Return a fault of `PLANNED` in one of the first `calls` calls or messages of an incarnation."""
    kind = PLANNED[name]
    if kind in LOAD_FAULTS:
        return Fault(kind)
    call = 1 + rng.randrange(max(1, calls))
    if kind in LINK_FAULTS:
        call += FIRST_MESSAGE
    if kind in ("slow", "slow_link"):
        return Fault(kind, call, calls=SLOW_CALLS, seconds=SLOW_S)
    return Fault(kind, call)
