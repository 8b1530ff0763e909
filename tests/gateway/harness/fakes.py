"""A worker without a process: the test sends its frames."""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from actors.process.exit_cause import Origin
from actors.supervision.worker import (
    IncarnationLost,
    WorkerChanged,
    WorkerEvent,
    WorkerState,
    WorkerStatus,
    WorkerUnavailable,
)
from actors.supervision.worker_actor import WorkerRef
from gateway.routing.router import Router
from gateway.routing.worker_handle import Role
from protocol.commands import Cancel, Command, ReadRows, Submit, Tokenize
from protocol.errors import ErrorCode
from protocol.events import (
    Capabilities,
    Delta,
    Event,
    Failed,
    Finished,
    Gauges,
    Heartbeat,
    Hello,
    Logprobs,
    Ready,
    Step,
    Usage,
)
from protocol.request import FinishReason

DIGEST = "0123456789abcdef0123"
ONE_TOKEN = Usage(3, 1)


class FakeWorker(WorkerRef):
    """`sent` has every message that the gateway posted, whole."""

    name: str = ""
    status: WorkerStatus = None  # type: ignore[assignment]  # attributes here, which the tests set

    def __init__(self, name: str = "w0", *, model: str = "tiny", slots: int = 4, context: int = 128) -> None:
        hello = Hello(1, name, 1, 4242, model, "scripted", "none", slots, context, DIGEST)
        self.status = WorkerStatus(
            name=name,
            state=WorkerState.READY,
            pid=4242,
            incarnation=1,
            restarts=0,
            hello=hello,
            ready=Ready(Capabilities(chat=True), device="cpu-0"),
            gauges=Gauges(),
            loading=None,
            last_progress=asyncio.get_running_loop().time(),
            reason="",
        )
        self.name = name
        self.model = model
        self.sent: list[list[Command]] = []
        self.exempted: list[int] = []
        self.kills = 0
        self.full = False
        self.arrived = asyncio.Event()
        self._router: Router | None = None

    def join(self, router: Router, role: Role = Role.ACTIVE) -> "FakeWorker":
        self._router = router
        router.add(self, self.name, self.model, role)
        return self

    def send_nowait(self, commands: Sequence[Command]) -> None:
        leaves = self.status.state is WorkerState.DRAINING and all(
            isinstance(each, Cancel | ReadRows) for each in commands
        )
        if self.full or not (leaves or self.status.state is WorkerState.READY):
            raise WorkerUnavailable("not now")
        self.sent.append(list(commands))
        self.arrived.set()

    def exempt_nowait(self, incarnation: int) -> None:
        self.exempted.append(incarnation)

    def kill_nowait(self) -> bool:
        self.kills += self.status.pid is not None
        return self.status.pid is not None

    @property
    def submits(self) -> list[Submit]:
        return [command for message in self.sent for command in message if isinstance(command, Submit)]

    @property
    def cancels(self) -> list[int]:
        return [command.stream for message in self.sent for command in message if isinstance(command, Cancel)]

    @property
    def queries(self) -> list[Tokenize]:
        return [command for message in self.sent for command in message if isinstance(command, Tokenize)]

    async def wait_queries(self, count: int) -> list[Tokenize]:
        """Until the gateway has asked this many queries in all."""
        while len(self.queries) < count:
            self.arrived.clear()
            await self.arrived.wait()
        return self.queries

    async def wait_submits(self, count: int) -> list[Submit]:
        """Until the gateway submitted this many sequences in all."""
        while len(self.submits) < count:
            self.arrived.clear()
            await self.arrived.wait()
        return self.submits

    async def wait_cancels(self, count: int) -> list[int]:
        while len(self.cancels) < count:
            self.arrived.clear()
            await self.arrived.wait()
        return self.cancels

    def change(self, **changes: Any) -> None:
        """Change the status, and notify the gateway."""
        self.status = replace(self.status, **changes)
        self.router.handle(WorkerChanged(self.status))

    @property
    def router(self) -> Router:
        if self._router is None:
            raise RuntimeError("join a router first")
        return self._router

    def say(self, event: Event, incarnation: int | None = None) -> None:
        now = self.status.incarnation if incarnation is None else incarnation
        self.router.handle(WorkerEvent(self.name, now, event))

    def token(self, stream: int, text: str, *tokens: int) -> None:
        self.say(Step((Delta(stream, tokens or (len(text),), text),), self.status.gauges))

    def report(self, stream: int, text: str, logprobs: Logprobs) -> None:
        """One token with its log-probabilities."""
        self.say(Step((Delta(stream, (logprobs.sampled.token,), text, (logprobs,)),), self.status.gauges))

    def finish(
        self,
        stream: int,
        text: str = "",
        *,
        reason: FinishReason = "stop",
        usage: Usage = ONE_TOKEN,
        stop: str | int | None = None,
    ) -> None:
        self.say(Finished(stream, reason, usage, (), text, stop=stop))

    def fail(self, stream: int, code: ErrorCode, text: str = "no", field: str = "", retry_after_s: int = 0) -> None:
        self.say(Failed(stream, code, text, field, retry_after_s))

    def reach(self, stream: int | None = None) -> None:
        """Say up to which stream it has made the prompts; up to the last one, if nothing else is said."""
        submits = self.submits
        last = submits[-1].stream if submits else 0
        self.say(Heartbeat(Gauges(reached=last if stream is None else stream)))

    def die(self, reached: int | None = None, origin: Origin = Origin.WITHIN) -> None:
        """This incarnation is gone, and the next one starts."""
        self.reach(reached)
        incarnation = self.status.incarnation
        self.status = replace(self.status, state=WorkerState.BACKOFF, pid=None)
        self.router.handle(IncarnationLost(self.name, incarnation, "killed by signal 9", origin))
        self.router.handle(WorkerChanged(self.status))

    def come_back(self) -> None:
        incarnation = self.status.incarnation + 1
        restarts = self.status.restarts + 1
        self.change(incarnation=incarnation, state=WorkerState.READY, restarts=restarts, gauges=Gauges())

    def say_cancelled(self, stream: int) -> None:
        self.say(Finished(stream, "cancelled", ONE_TOKEN))

    def say_old(self, stream: int) -> None:
        """A late end from the incarnation before this one."""
        self.say(Finished(stream, "stop", ONE_TOKEN), self.status.incarnation - 1)
