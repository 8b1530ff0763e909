"""What the process tests share: fake workers and gateways as commands, a listener that remembers, waits for exits."""

import os
import select
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from actors.process.exit_cause import Origin
from actors.supervision.policy import RestartPolicy
from actors.supervision.worker_process import Deadlines, WorkerProcess, WorkerState, WorkerStatus
from protocol.commands import Submit
from protocol.events import Event, Heartbeat
from protocol.request import Limits, Sampling, TokensInput

HERE = Path(__file__).parent
WAIT_S = 60.0
AT_ONCE = RestartPolicy(max_failures=10, first_delay_s=0.0, max_delay_s=0.0)
ONCE = RestartPolicy(max_failures=1)
PATIENT = Deadlines(hello=60, loading=60, beat=60, idle=60, hang=60, stop=60, term=1)


def fake_worker(*modes: str) -> Callable[[str, int], Sequence[str]]:
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


class Recorder:
    """A listener that remembers everything in order, and checks the rules that hold for every worker."""

    def __init__(self) -> None:
        self.states: list[WorkerState] = []
        self.statuses: list[WorkerStatus] = []
        self.events: list[tuple[int, Event]] = []
        """Without the beats: how many there are is the clock's business."""
        self.lost: list[tuple[int, str]] = []
        self.origins: list[Origin] = []
        self._greeted: set[int] = set()
        self._changed = anyio.Event()

    def worker_event(self, worker: str, incarnation: int, event: Event) -> None:
        assert incarnation in self._greeted
        assert incarnation not in [number for number, _ in self.lost]
        if not isinstance(event, Heartbeat):
            self.events.append((incarnation, event))
        self._changed.set()

    def worker_changed(self, status: WorkerStatus) -> None:
        self.statuses.append(status)
        if self.states[-1:] != [status.state]:
            self.states.append(status.state)
        if status.hello is not None:
            self._greeted.add(status.incarnation)
        self._changed.set()

    def worker_lost(self, worker: str, incarnation: int, reason: str, origin: Origin) -> None:
        self.lost.append((incarnation, reason))
        self.origins.append(origin)
        self._changed.set()

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


def make(
    *modes: str, policy: RestartPolicy = AT_ONCE, deadlines: Deadlines = PATIENT
) -> tuple[WorkerProcess, Recorder]:
    recorder = Recorder()
    return WorkerProcess("w", fake_worker(*modes), recorder, policy=policy, deadlines=deadlines), recorder


@asynccontextmanager
async def running(worker: WorkerProcess, recorder: Recorder) -> AsyncIterator[anyio.abc.TaskGroup]:
    """Run a worker for the length of the block, then cancel it, and check that nothing of it is left."""
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            yield group
            group.cancel_scope.cancel()
    recorder.check()
    for pid in {status.pid for status in recorder.statuses if status.pid is not None}:
        wait_gone(pid)
