"""What goes wrong on purpose: a worker's plan of faults, for tests of everything that must outlive them.

The calls' faults are carried out by `workers.faults.faulty_runner`, the link's by `workers.faults.faulty_link`.
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
    """Raised by what was told to fail."""


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that goes wrong, at the load, in some of the runner's prefill, decode and logits calls, or on the link.

    `raise` computes and then raises, `nan` finds logits that are not numbers (those of the rows that it hits alone),
    `slow` takes `seconds` longer, `hang` never returns (the process lives on, and its loop sends heartbeats), `stop`
    suspends the whole process (SIGSTOP), `kill` ends it (SIGKILL), `abort` ends it as native code does that finds
    itself broken (SIGABRT). `fail_load`, `refuse_load` (for good), `no_memory` and `disk_full` end the load, when all
    is there. Of the messages to the gateway, `drop_message` loses one, `garble_message` sends bytes that are no frame
    in its place, `oversize_message` a frame over its bound, and `slow_link` has it arrive `seconds` later, and so all
    that follow it.
    """

    kind: CallFault | LoadFault | LinkFault
    call: Annotated[int, Meta(ge=1)] = 1
    """The first call, or message, that it happens in, counted from 1."""
    calls: Annotated[int, Meta(ge=0)] = 1
    """In how many from there; 0 is all of them."""
    token: Annotated[int, Meta(ge=0)] | None = None
    """Only in calls that compute this token: a request that is bad for whoever takes it."""
    seconds: Annotated[float, Meta(ge=0.0)] = 0.0
    incarnation: Annotated[int, Meta(ge=0)] = 0
    """Only in this life of the worker; 0 is in each."""

    def hits(self, call: int, tokens: Collection[int]) -> bool:
        """It happens in the call of this number, which computes these tokens."""
        started = self.call <= call and (self.calls == 0 or call < self.call + self.calls)
        return started and (self.token is None or self.token in tokens)


Act = Callable[[Fault, int], None]


def of_incarnation(faults: Sequence[Fault], incarnation: int) -> tuple[Fault, ...]:
    """What goes wrong in one life of a worker."""
    return tuple(fault for fault in faults if fault.incarnation in (0, incarnation))


def fail_load(faults: Sequence[Fault]) -> None:
    """Raise what the first fault of a load says, if there is one."""
    for fault in faults:
        match fault.kind:
            case "fail_load":
                raise PlannedFault("the load was told to fail")
            case "refuse_load":
                raise LoadRefused("the load was told to refuse")
            case "no_memory":
                raise MemoryError("the load was told to find no memory")
            case "disk_full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the graph cache")


def raising(calls: Iterable[int]) -> tuple[Fault, ...]:
    """The runner's calls with these numbers raise."""
    return tuple(Fault("raise", call) for call in sorted(calls))


def of_calls(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """What goes wrong in the runner's calls."""
    return tuple(fault for fault in faults if fault.kind in CALL_FAULTS)


def of_link(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """What goes wrong on the link."""
    return tuple(fault for fault in faults if fault.kind in LINK_FAULTS)


class FaultPlan:
    """The faults of the calls. `acts` says how those of a whole process are carried out, for tests; each takes the
    fault and the call's number."""

    def __init__(self, faults: Sequence[Fault], acts: Mapping[str, Act] | None = None) -> None:
        self._faults = tuple(faults)
        self._acts = _ACTS if acts is None else acts

    def not_finite(self, call: int, tokens: Collection[int]) -> bool:
        """The logits after these tokens are not numbers in this call."""
        return any(fault.kind == "nan" and fault.hits(call, tokens) for fault in self._faults)

    def fails(self, call: int, tokens: Collection[int]) -> bool:
        """This call is to raise."""
        return any(fault.kind == "raise" and fault.hits(call, tokens) for fault in self._faults)

    def enter(self, call: int, tokens: Collection[int]) -> None:
        """Do to the process what goes wrong at the start of this call, in the order of the plan."""
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
