"""What an operator asks of a running gateway, one thing at a time: drain, restart, replace all, another checkpoint."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

import anyio
import structlog

from actors.supervision.worker import WorkerState
from gateway.fleet.fleet import Fleet, Member
from gateway.fleet.launch import LaunchRefused
from gateway.fleet.rolling_restart import OperationFailed, Replacement, release_extras
from gateway.routing.worker_pool import WorkerPool

MAX_LINES = 1000
"""Lines that one operation may say of itself; each worker has two."""

_log = structlog.get_logger("gateway.fleet.operations")


class Busy(Exception):
    """Raised when another operation is under way."""


class Outcome(StrEnum):
    """How an operation stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Operation:
    """One thing that was asked for, for those who want to know how it goes."""

    number: int
    name: str
    outcome: Outcome = Outcome.RUNNING
    lines: list[str] = field(default_factory=list)
    """What was done, oldest first; the last one of a failed operation is why."""

    def say(self, line: str) -> None:
        """Note what was done."""
        _log.info("operation", number=self.number, operation=self.name, did=line)
        if len(self.lines) < MAX_LINES:
            self.lines.append(line)


class Operations:
    """Runs operations over the fleet in a task of its own, so that nobody who asks needs to wait."""

    def __init__(self, fleet: Fleet, roster: WorkerPool) -> None:
        self.latest: Operation | None = None
        self._fleet = fleet
        self._roster = roster
        self._asked = anyio.Event()
        self._next: Callable[[Operation], Awaitable[None]] | None = None

    async def run(self) -> None:
        """Carry out what is asked for, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            work, operation = self._next, self.latest
            assert work is not None
            assert operation is not None
            try:
                try:
                    await work(operation)
                finally:
                    await release_extras(self._fleet, self._roster, operation.say)
                operation.outcome = Outcome.DONE
            except (OperationFailed, LaunchRefused) as error:
                operation.say(str(error))
                operation.outcome = Outcome.FAILED
            except Exception as error:  # noqa: BLE001  a defect ends this operation, not the gateway
                operation.say(f"a defect: {type(error).__name__}: {error}")
                operation.outcome = Outcome.FAILED
                _log.error("operation_failed", number=operation.number, exc_info=error)

    def drain(self, worker: str, grace_s: float) -> Operation:
        """Stop a worker for good; what it has finishes, or goes on elsewhere. Raises `KeyError` and `Busy`."""
        member = self._fleet[worker]

        async def work(operation: Operation) -> None:
            await self._fleet.drain(member, grace_s)
            operation.say(f"{worker} is drained and stopped")

        return self._begin(f"drain {worker}", work)

    def restart(self, worker: str, grace_s: float) -> Operation:
        """Let a worker start again, in its place: also one that was stopped or given up. Raises as `drain` does."""
        member = self._fleet[worker]

        async def work(operation: Operation) -> None:
            await renew(self._fleet, operation, member, grace_s)

        return self._begin(f"restart {worker}", work)

    def restart_all(self, grace_s: float, model: str = "") -> Operation:
        """Let the workers (of a model) start again in their places, one after the other: with less capacity meanwhile,
        and for a while none where there is one worker, but without the memory for another. Raises as `replace_all`."""
        self._check_model(model)

        async def work(operation: Operation) -> None:
            for member in list(self._fleet):
                if member.model == model or not model:
                    await renew(self._fleet, operation, member, grace_s)

        return self._begin(f"restart of {model or 'all'}", work)

    def replace_all(self, grace_s: float, model: str = "", checkpoint: str = "") -> Operation:
        """Restart every worker (of a model), with its old checkpoint or another, and lose no request and no capacity:
        each is replaced by one that is ready before it drains. Those of other machines leave one after the other, and
        are let in again when they serve the same checkpoint. Raises `KeyError` for a model without workers."""
        self._check_model(model)
        models = [model] if model else self._roster.models()

        async def work(operation: Operation) -> None:
            for name in models:
                await Replacement(self._fleet, self._roster, name, operation.say, grace_s).run(checkpoint)
                await self._replace_remote(operation, name, checkpoint, grace_s)

        name = f"reload {model or 'all'} from {checkpoint}" if checkpoint else f"rolling restart of {model or 'all'}"
        return self._begin(name, work)

    async def _replace_remote(self, operation: Operation, model: str, checkpoint: str, grace_s: float) -> None:
        for member in [member for member in self._fleet if member.remote and member.model == model]:
            if checkpoint:
                await self._fleet.dismiss(member, grace_s)
                operation.say(f"{member.name} has left: it may join again with the same checkpoint")
            else:
                await renew(self._fleet, operation, member, grace_s)

    def _begin(self, name: str, work: Callable[[Operation], Awaitable[None]]) -> Operation:
        if self.latest is not None and self.latest.outcome is Outcome.RUNNING:
            raise Busy(f"{self.latest.name} is under way")
        number = 1 if self.latest is None else self.latest.number + 1
        self.latest = Operation(number, name)
        self._next = work
        self._asked.set()
        return self.latest

    def _check_model(self, model: str) -> None:
        if model and not self._roster.of(model):
            raise KeyError(model)


async def renew(fleet: Fleet, operation: Operation, member: Member, grace_s: float) -> None:
    """Let a worker start again. Raises `OperationFailed` when it cannot."""
    await fleet.renew(member, grace_s)
    if not member.running or (member.remote and member.state is not WorkerState.READY):
        raise OperationFailed(f"{member.name} did not become ready: {member.process.status.reason}")
    operation.say(f"{member.name} was started again")
