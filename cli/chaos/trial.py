"""A trial: streams from a running server and repeated faults on its workers."""

import asyncio
import contextlib
import functools
import os
import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from cli.chaos.faults import LOAD_FAULTS, SIGNALS, planned_fault
from cli.chaos.http_client import ClientRequest, ServerAddress
from cli.chaos.rounds import ClientImpact, FaultTrigger, compare, run_round
from cli.chaos.transcript import Transcript
from cli.chaos.workers_watcher import WorkersWatcher
from cli.config.errors import CommandFailed
from workers.faults.plan import Fault

MAX_COUNTED_FAULTS = 3
"""Counted faults for one worker: a server gives up a worker that fails five times within five minutes."""
COUNTED = frozenset({"abort"}) if sys.platform == "linux" else frozenset(SIGNALS)
"""The signals that count against a worker. Linux reports which process sent a signal, but an abort might be the
worker's own. Other systems do not report the sender, so that every signal counts."""
READY_S = 300.0
"""Time limit for all workers to be ready again."""

SendSignal = Callable[[int, int], None]
PlanFault = Callable[[str, Fault], None]


class Trial:
    """Rounds against one server, each with one fault on an active worker. Owns their results."""

    def __init__(
        self,
        server: ServerAddress,
        watcher: WorkersWatcher,
        requests: Sequence[ClientRequest],
        *,
        seed: int,
        send_signal: SendSignal = os.kill,
        plan_fault: PlanFault | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send_signal(pid, signal)` injects a fault from outside, `plan_fault(worker, fault)` plans one from within.

        Only an owned server has `plan_fault`. It gives no worker up.
        """
        self._server = server
        self._watcher = watcher
        self._requests = requests
        self._random = random.Random(seed)
        self._send_signal = send_signal
        self._plan_fault = plan_fault
        self._counted = COUNTED if plan_fault is None else frozenset[str]()
        self._clock = clock
        self._faults_of: Counter[str] = Counter()
        """The number of counted faults that each worker got."""
        self.impacts: dict[str, ClientImpact] = {}
        """The sum of all rounds of each fault."""
        self.rounds: dict[str, int] = {}
        """The number of rounds of each fault."""

    def run(self, faults: Sequence[str], seconds: float) -> str:
        """Run rounds until the time is over, or every worker got the most faults that it may. Returns why it ended.

        Raises `CommandFailed` if an undisturbed request fails, or the workers do not become ready again.
        """
        undisturbed = self._undisturbed()
        order = deque(self._random.sample(list(faults), len(faults)))  # so that few rounds include each fault
        until = self._clock() + seconds
        while self._clock() < until:
            if not order:
                return (
                    f"every worker got {MAX_COUNTED_FAULTS} faults that count against it; "
                    "with more, the server might give one up"
                )
            fault = order.popleft()
            victim = self._victim(fault)
            if victim is None:
                continue
            order.append(fault)
            self._round(fault, victim, undisturbed)
            self._watcher.wait_until_ready(READY_S)
        return "the time is over"

    def _undisturbed(self) -> list[Transcript]:
        undisturbed, _ = asyncio.run(run_round(self._server, self._requests))
        for request, stream in zip(self._requests, undisturbed, strict=True):
            if problem := ": ".join(stream.errors[0]) if stream.errors else stream.violation(request.choices):
                raise CommandFailed(f"{request.path} failed without any fault: {problem}")
        return undisturbed

    def _victim(self, fault: str) -> dict[str, Any] | None:
        """Choose an active worker that may get this fault, and count the fault. None if there is none any more."""
        counts = fault in self._counted
        active = self._watcher.active()
        if not active:  # a link fault may occur between two rounds, since an idle worker sends heartbeats
            self._watcher.wait_until_ready(READY_S)
            active = self._watcher.active()
        allowed = [each for each in active if not counts or self._faults_of[each["name"]] < MAX_COUNTED_FAULTS]
        if not allowed:
            return None
        victim = self._random.choice(allowed)
        self._faults_of[victim["name"]] += counts
        return victim

    def _round(self, fault: str, victim: dict[str, Any], undisturbed: Sequence[Transcript]) -> None:
        tokens = max(stream.tokens for stream in undisturbed)
        trigger = self._prepare(fault, victim, tokens)
        streams, at = asyncio.run(run_round(self._server, self._requests, trigger))
        if trigger is not None:  # the streams may end before the server notices that the worker is gone
            self._watcher.wait_until_gone(victim["pid"], READY_S)
        impact = compare(self._requests, streams, at, undisturbed)
        self.impacts[fault] = self.impacts.get(fault, ClientImpact()) + impact
        self.rounds[fault] = self.rounds.get(fault, 0) + 1

    def _prepare(self, fault: str, victim: dict[str, Any], tokens: int) -> FaultTrigger | None:
        """Return the trigger of a signal at a random moment; None if the worker injects the fault itself."""
        number = SIGNALS.get(fault)
        if number is None:
            assert self._plan_fault is not None, "only an owned server gets faults from within"
            # In the first half of a stream's tokens, which a worker reaches that shares the streams with another.
            planned = planned_fault(fault, self._random, tokens // 2)
            if fault not in LOAD_FAULTS:
                self._start_with(planned, victim["name"])
                return None
            self._plan_fault(victim["name"], planned)
            number = signal.SIGKILL  # the load that fails is that of the next incarnation
        inject = functools.partial(self._signal, int(victim["pid"]), number)
        return FaultTrigger(self._random.randrange(tokens), inject)

    def _start_with(self, fault: Fault, victim: str) -> None:
        """Start an active incarnation with this fault planned.

        A standby takes the place of a worker that restarts. So if there is one, the standby gets the fault and is
        restarted first, and then replaces the victim.
        """
        assert self._plan_fault is not None
        standby = self._watcher.standby()
        faulty = standby[0]["name"] if standby else victim
        self._plan_fault(faulty, fault)
        for name in dict.fromkeys((faulty, victim)):
            self._watcher.restart(name)
            self._watcher.wait_until_ready(READY_S)

    def _signal(self, pid: int, number: int) -> None:
        # The worker may have ended by itself before.
        with contextlib.suppress(ProcessLookupError):
            self._send_signal(pid, number)
