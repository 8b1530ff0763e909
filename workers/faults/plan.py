"""Planned faults of a worker, for tests of everything that must survive them.

`workers.faults.faulty_runner` carries out the faults of calls, `workers.faults.faulty_link` those of the link.
"""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from workers.errors import LoadRefused

CallFault = Literal["raise", "nan", "slow", "hang", "stop", "kill", "abort"]
LoadFault = Literal["fail_load", "refuse_load", "no_memory", "disk_full"]
LinkFault = Literal["drop_message", "garble_message", "oversize_message", "slow_link"]
CALL_FAULTS: tuple[CallFault, ...] = get_args(CallFault)
LINK_FAULTS: tuple[LinkFault, ...] = get_args(LinkFault)


class PlannedFault(Exception):
    """Raised by a call or a load that is planned to fail."""


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """One planned fault: of the load, of the runner's prefill, decode and logits calls, or of the link.

    Calls: `raise` computes and then raises; `nan` makes the logits NaN in the rows that it hits; `slow` takes `seconds`
    longer; `hang` never returns, while the event loop keeps sending heartbeats; `stop` suspends the process (SIGSTOP);
    `kill` ends it (SIGKILL); `abort` ends it like failing native code (SIGABRT).

    Load: `fail_load`, `refuse_load` (permanently), `no_memory` and `disk_full` end it after everything is loaded.

    Link, messages to the gateway: `drop_message` loses one; `garble_message` sends invalid bytes instead;
    `oversize_message` sends a frame over its bound; `slow_link` delays it and all later ones by `seconds`.
    """

    kind: CallFault | LoadFault | LinkFault
    call: Annotated[int, Meta(ge=1)] = 1
    """The first call or message with the fault, counted from 1."""
    calls: Annotated[int, Meta(ge=0)] = 1
    """Number of calls from there on; 0 means all."""
    token: Annotated[int, Meta(ge=0)] | None = None
    """Only in calls that compute this token: a poison request, on any worker."""
    seconds: Annotated[float, Meta(ge=0.0)] = 0.0
    incarnation: Annotated[int, Meta(ge=0)] = 0
    """Only in this incarnation of the worker; 0 means in each."""

    def hits(self, call: int, tokens: Collection[int]) -> bool:
        """The fault happens in call number `call`, which computes `tokens`."""
        started = self.call <= call and (self.calls == 0 or call < self.call + self.calls)
        return started and (self.token is None or self.token in tokens)


Act = Callable[[Fault, int], None]


def of_incarnation(faults: Sequence[Fault], incarnation: int) -> tuple[Fault, ...]:
    """Return the faults of one incarnation of a worker."""
    return tuple(fault for fault in faults if fault.incarnation in (0, incarnation))


def fail_load(faults: Sequence[Fault]) -> None:
    """Raise the first planned fault of a load, if any."""
    for fault in faults:
        match fault.kind:
            case "fail_load":
                raise PlannedFault("planned fault: the load fails")
            case "refuse_load":
                raise LoadRefused("planned fault: the load is refused")
            case "no_memory":
                raise MemoryError("planned fault: no memory for the load")
            case "disk_full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the graph cache")


def raising(calls: Iterable[int]) -> tuple[Fault, ...]:
    """Return faults that make the runner's calls with these numbers raise."""
    return tuple(Fault("raise", call) for call in sorted(calls))


def of_calls(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Return the faults of the runner's calls."""
    return tuple(fault for fault in faults if fault.kind in CALL_FAULTS)


def of_link(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Return the faults of the link."""
    return tuple(fault for fault in faults if fault.kind in LINK_FAULTS)


class FaultPlan:
    """The faults of calls. Tests replace `acts`, which carry out the faults of a whole process; each takes the fault
    and the number of the call."""

    def __init__(self, faults: Sequence[Fault], acts: Mapping[str, Act] | None = None) -> None:
        self._faults = tuple(faults)
        self._acts = _ACTS if acts is None else acts

    def not_finite(self, call: int, tokens: Collection[int]) -> bool:
        """The logits after these tokens are NaN in this call."""
        return any(fault.kind == "nan" and fault.hits(call, tokens) for fault in self._faults)

    def fails(self, call: int, tokens: Collection[int]) -> bool:
        """The plan has this call raise."""
        return any(fault.kind == "raise" and fault.hits(call, tokens) for fault in self._faults)

    def enter(self, call: int, tokens: Collection[int]) -> None:
        """Carry out the faults at the start of this call, in the order of the plan."""
        for fault in self._faults:
            if fault.kind in self._acts and fault.hits(call, tokens):
                self._acts[fault.kind](fault, call)


def _hang(_: Fault, __: int) -> None:
    threading.Event().wait()


def _abort(_: Fault, __: int) -> None:
    os.abort()


_ACTS: Mapping[str, Act] = {
    "slow": lambda fault, _: time.sleep(fault.seconds),
    "hang": _hang,
    "stop": lambda _, __: os.kill(os.getpid(), signal.SIGSTOP),
    "kill": lambda _, __: os.kill(os.getpid(), signal.SIGKILL),
    "abort": _abort,
}
