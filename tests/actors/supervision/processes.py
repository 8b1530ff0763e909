"""Shared by the tests of real processes: fake workers as commands, a watcher that remembers, waits for exits."""

import os
import select
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from actors.actor import Actor, Terminated
from actors.process.exit_cause import Origin
from actors.supervision.deadlines import Deadlines
from actors.supervision.life import Terms
from actors.supervision.local import CommandLine
from actors.supervision.messages import StartWorker, StopWorker
from actors.supervision.restart_policy import RestartPolicy
from actors.supervision.worker import (
    GraceEnded,
    IncarnationLost,
    WorkerChanged,
    WorkerEvent,
    WorkerNotice,
    WorkerState,
    WorkerStatus,
)
from actors.supervision.worker_actor import WorkerRef, spawn_worker
from actors.system import ActorSystem
from protocol.commands import Submit
from protocol.events import Event, Heartbeat
from protocol.request import Limits, Sampling, TokensInput

HERE = Path(__file__).parent
WAIT_S = 60.0
AT_ONCE = RestartPolicy(max_failures=10, first_delay_s=0.0, max_delay_s=0.0)
ONCE = RestartPolicy(max_failures=1)
PATIENT = Deadlines(hello=60, loading=60, heartbeat=60, idle=60, hang=60, stop=60, term=1)


def fake_worker(*modes: str) -> CommandLine:
    """A command whose first incarnations behave as `modes` say, and the later ones as the last of them."""

    def command(endpoint: str, incarnation: int) -> Sequence[str]:
        mode = modes[min(incarnation, len(modes)) - 1]
        return [sys.executable, str(HERE / "fake_worker.py"), endpoint, str(incarnation), mode]

    return command


def submit(stream: int = 1) -> Submit:
    return Submit(
        stream=stream, request=f"r{stream}", input=TokensInput(tokens=(1,)), sampling=Sampling(), limits=Limits()
    )


def wait_gone(pid: int) -> None:
    """Wait until a process that need not be our child has exited."""
    if sys.platform != "linux":  # no descriptor to wait for
        for _ in range(int(WAIT_S * 100)):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.01)
        raise AssertionError(f"process {pid} lives on")
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], WAIT_S)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)


class Recorder(Actor[WorkerNotice | Terminated]):
    """A watcher that remembers everything in order, and checks the rules that hold for every worker. It ends after the
    worker, also when both are cancelled."""

    def __init__(self) -> None:
        self.states: list[WorkerState] = []
        self.statuses: list[WorkerStatus] = []
        self.events: list[tuple[int, Event]] = []
        """Without the heartbeats: how many there are is the clock's business."""
        self.lost: list[tuple[int, str]] = []
        self.origins: list[Origin] = []
        self.graces: list[int] = []
        self._greeted: set[int] = set()
        self._changed = anyio.Event()
        self._terminated = anyio.Event()

    def handle(self, message: WorkerNotice | Terminated) -> None:
        match message:
            case WorkerEvent(_, incarnation, event):
                assert incarnation in self._greeted
                assert incarnation not in [number for number, _ in self.lost]
                if not isinstance(event, Heartbeat):
                    self.events.append((incarnation, event))
            case WorkerChanged(status):
                self.statuses.append(status)
                if self.states[-1:] != [status.state]:
                    self.states.append(status.state)
                if status.hello is not None:
                    self._greeted.add(status.incarnation)
            case IncarnationLost():
                self.lost.append((message.incarnation, message.reason))
                self.origins.append(message.origin)
            case GraceEnded():
                self.graces.append(message.incarnation)
            case Terminated():
                self._terminated.set()
        self._changed.set()

    async def stopped(self) -> None:
        await self._terminated.wait()

    async def stop(self, worker: WorkerRef) -> WorkerStatus:
        """Stop the worker: its status then."""
        worker.ref.tell(StopWorker())
        await self.until(lambda: not worker.status.running)
        return worker.status

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(WAIT_S):
            while not condition():
                self._changed = anyio.Event()
                await self._changed.wait()

    async def until_lost(self, count: int) -> None:
        await self.until(lambda: len(self.lost) == count)

    async def until_state(self, state: WorkerState) -> WorkerStatus:
        await self.until(lambda: self.states[-1:] == [state])
        return self.statuses[-1]

    def check(self) -> None:
        """Each incarnation that said Hello was lost exactly once."""
        assert sorted(number for number, _ in self.lost) == sorted(self._greeted)


class Watched(ActorSystem):
    """A system with a recorder, which watches every worker that it is given."""

    def __init__(self, recorder: Recorder | None) -> None:
        super().__init__()
        self.recorder = recorder or Recorder()

    def watch(self, worker: WorkerRef) -> None:
        worker.ref.watch(self.spawn("recorder", self.recorder, stop_s=WAIT_S))


@asynccontextmanager
async def supervised(
    *modes: str,
    command: CommandLine | None = None,
    policy: RestartPolicy = AT_ONCE,
    deadlines: Deadlines = PATIENT,
    recorder: Recorder | None = None,
    start: bool = True,
) -> AsyncIterator[tuple[WorkerRef, Recorder]]:
    """Run a worker for the length of the block, then cancel it, and check that nothing of it is left."""
    with anyio.fail_after(WAIT_S):
        async with Watched(recorder) as system:
            worker = spawn_worker(system, "w", Terms(policy, deadlines), command or fake_worker(*modes))
            system.watch(worker)
            if start:
                worker.ref.tell(StartWorker())
            yield worker, system.recorder
    system.recorder.check()
    for pid in {status.pid for status in system.recorder.statuses if status.pid is not None}:
        wait_gone(pid)
