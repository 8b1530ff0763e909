"""Where actors live: a task each in a task group, one supervisor each, and word of their end to those who watch.

Structured: a child's task is inside its parent's task group. So a parent's end is its children's, an escalated failure
reaches the parent as an exception, and nothing outlives the `async with ActorSystem()` block. Needs asyncio underneath
only where a link is used.
"""

import itertools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from actors.actor import Actor, ActorStopped, AskFailed, Context, Envelope, Ref, Terminated, Unrecoverable
from actors.mailbox import Mailbox, MailboxClosed
from actors.supervision.policy import Decision, Escalate, FailureRecord, GiveUp, Policy, Restart, RestartPolicy

M = TypeVar("M")

STOP_TIMEOUT_S = 10.0
TURN = 64
"""Messages that an actor handles before it lets others run, when its handlers never wait."""

Judge = Callable[[Exception], Decision]
Observer = Callable[[Exception, Decision], None]


class ActorFailed(Exception):
    """Raised in the parent (or out of the system) when an actor's failure is escalated; its exception is the cause."""


class ActorSystem:
    """The root of all actors: `async with ActorSystem() as system`. Leaving the block waits for every actor to end."""

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._group.__aexit__(kind, error, trace)

    def spawn(self, name: str, factory: Callable[[], Actor[M]], **options: Any) -> Ref[M]:
        """Start an actor made by `factory`, called again for every restart. Options:

        `policy`: what to do after a failure (default `RestartPolicy()`).
        `capacity`, `reserve`: the mailbox's bounds.
        `stop_timeout`: seconds that the `stopped` hook may take.
        `judge`: called with the failure after each, instead of the policy, to decide.
        `observer`: called with (failure, decision) after each failure, on the event loop; must not raise.
        """
        return self.spawn_in(self._group, name, factory, **options)

    def spawn_in(
        self,
        group: TaskGroup,
        name: str,
        factory: Callable[[], Actor[M]],
        *,
        policy: Policy | None = None,
        capacity: int = 256,
        reserve: int = 64,
        stop_timeout: float = STOP_TIMEOUT_S,
        judge: Judge | None = None,
        observer: Observer | None = None,
    ) -> Ref[M]:
        """Like `spawn`, inside the task group of a parent."""
        mailbox: Mailbox[Envelope[M]] = Mailbox(capacity, reserve)
        judge = judge or _by(policy or RestartPolicy())
        cell = Cell(self, name, factory, mailbox, judge, stop_timeout, observer)
        group.start_soon(cell.run, name=f"actor {name}")
        return cell.ref

    def cancel(self) -> None:
        """End every actor now."""
        self._group.cancel_scope.cancel()


class Cell(Generic[M]):
    """One actor over its restarts. Owns its mailbox and its watchers."""

    def __init__(
        self,
        system: ActorSystem,
        name: str,
        factory: Callable[[], Actor[M]],
        mailbox: Mailbox[Envelope[M]],
        judge: Judge,
        stop_timeout: float,
        observer: Observer | None,
    ) -> None:
        self.system = system
        self.name = name
        self.ref = Ref(self, mailbox)
        self._factory = factory
        self._mailbox = mailbox
        self._judge = judge
        self._stop_timeout = stop_timeout
        self._observer = observer
        self._stopping = anyio.Event()
        self._ended = anyio.Event()
        self._end: Terminated | None = None
        self._watchers: dict[int, Cell[Any]] = {}  # kept after the end: each is told once, however often it asks

    @property
    def ended(self) -> bool:
        return self._end is not None

    def stop_requested(self) -> None:
        self._stopping.set()

    def watched_by(self, watcher: "Cell[Any]") -> None:
        if id(watcher) in self._watchers:
            return
        self._watchers[id(watcher)] = watcher
        if self._end is not None:
            watcher._mailbox.post_promised(Envelope(self._end))

    async def wait_ended(self) -> Terminated:
        await self._ended.wait()
        assert self._end is not None
        return self._end

    async def run(self) -> None:
        """Live through starts and restarts until an ordinary end, a decision against another start, or a cancel."""
        reason, failed = "cancelled", False
        try:
            while True:
                failure = await self._live()
                if failure is None:
                    reason = "stopped"
                    return
                decision = self._decide(failure)
                if not isinstance(decision, Restart):
                    reason, failed = f"{decision.reason}: {failure}", True
                    if isinstance(decision, Escalate):
                        raise ActorFailed(f"actor {self.name!r}: {decision.reason}") from failure
                    return
                reason = "stopped while it waited for its restart"
                if self._stopping.is_set():
                    return
                with anyio.move_on_after(decision.delay_s):
                    await self._stopping.wait()
                    return
                reason = "cancelled"
        finally:
            self._finish(Terminated(self.name, reason, failed))

    def _decide(self, failure: Exception) -> Decision:
        decision: Decision
        if isinstance(failure, Unrecoverable):
            decision = GiveUp("cannot be healed by a restart")
        else:
            decision = self._judge(failure)
        if self._observer is not None:
            self._observer(failure, decision)
        return decision

    def _finish(self, end: Terminated) -> None:
        """Tell everyone, synchronously: a cancelled task could not await here."""
        self._mailbox.close()
        for envelope in self._mailbox.clear():
            if envelope.reply is not None:
                envelope.reply.fail(ActorStopped(f"actor {self.name!r} ended: {end.reason}"))
        self._end = end
        self._ended.set()
        for watcher in self._watchers.values():
            watcher._mailbox.post_promised(Envelope(end))

    async def _live(self) -> Exception | None:
        """One start: from the factory to the `stopped` hook. Returns the failure, None for an ordinary end."""
        failure: Exception | None = None
        actor: Actor[M] | None = None
        try:
            actor = self._factory()
            async with anyio.create_task_group() as group:
                actor.context = Context(self, group)
                await actor.started()
                await self._serve(actor)
                group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001  # an actor's failure is its supervisor's business
            failure = _single(error)
        finally:
            if actor is not None:
                with anyio.move_on_after(self._stop_timeout, shield=True):
                    failure = await self._stopped(actor, failure)
        return failure

    async def _stopped(self, actor: Actor[M], failure: Exception | None) -> Exception | None:
        try:
            await actor.stopped(failure)
        except Exception as error:  # noqa: BLE001  # the first failure is the one that explains
            return failure or error
        return failure

    async def _serve(self, actor: Actor[M]) -> None:
        mailbox = self._mailbox
        turn = 0
        while True:
            turn += 1
            if turn % TURN == 0:
                await anyio.lowlevel.checkpoint()
            try:
                envelope = await mailbox.receive()
            except MailboxClosed:
                return
            await self._handle(actor, envelope)

    async def _handle(self, actor: Actor[M], envelope: Envelope[M]) -> None:
        slot = envelope.reply
        if isinstance(envelope.message, Terminated):
            await actor.terminated(envelope.message)
        elif slot is None:
            await actor.handle(envelope.message)
        elif not slot.abandoned:
            try:
                slot.resolve(await actor.handle(envelope.message))
            except Exception as error:
                failed = AskFailed(f"actor {self.name!r} failed on the message")
                failed.__cause__ = error
                slot.fail(failed)
                raise
            finally:
                slot.fail(ActorStopped(f"actor {self.name!r} was cancelled"))  # unless it was filled above


def _by(policy: Policy) -> Judge:
    """Decides by the policy alone, on a record of its own."""
    record, starts = FailureRecord(policy), itertools.count(1)
    return lambda _: record.failed(anyio.current_time(), next(starts))


def _single(error: Exception) -> Exception:
    """What failed first inside an exception group; the others, if any, are noted on it."""
    while isinstance(error, ExceptionGroup):
        first, *others = error.exceptions
        for other in others:
            first.add_note(f"and at the same time: {other!r}")
        error = first
    return error
