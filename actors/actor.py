"""Actors: state with one owner that handles one typed message at a time, and the refs by which others reach it."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, Generic, TypeVar

import anyio
import structlog
from msgspec import Struct

from actors.mailbox import Dispatcher, Mailbox

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")


class ActorStopped(Exception):
    """Raised by `tell` and `ask` when the actor has ended, and by an `ask` that it left unanswered when it ended."""


class AskTimeout(Exception):
    """Raised by `ask` when its deadline passed. If the message still waits, it is not handled any more."""


class AskFailed(Exception):
    """Raised by `ask` when the handler raised; the handler's exception is the cause."""


class OnFailure(Enum):
    """The supervisor's rule for an actor whose handler or task raised, after the exception was logged in full: keep its
    state and handle the next message, let it begin anew (`Actor.restarted`), or end it (`Terminated` has the error)."""

    RESUME = auto()
    RESTART = auto()
    STOP = auto()


class Terminated(Struct, frozen=True):
    """Notifies a watcher, exactly once, that an actor has ended: for that failure, or as it should."""

    actor: str
    error: Exception | None


class ReplyTo(Generic[R]):
    """Where the answer to one `ask` goes: at once, or later when the actor's state allows it. The first one counts."""

    def __init__(self) -> None:
        self._future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    @property
    def done(self) -> bool:
        """It was answered, or nobody waits for it any more."""
        return self._future.done()

    def send(self, value: R) -> None:
        """Answer with a value."""
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: Exception) -> None:
        """Answer with an error, which `ask` raises."""
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # it counts as seen, also when the asker is cancelled just now

    async def wait(self, timeout: float) -> R:  # noqa: ASYNC109  # a deadline is part of asking, not an option
        """The answer, within `timeout` seconds. Raises `AskTimeout`, or the error that was the answer."""
        try:
            with anyio.move_on_after(timeout):
                return await self._future
        finally:
            self._future.cancel()
        raise AskTimeout(f"no reply within {timeout:g} s")


class Waiting:
    """Replies of one actor that wait until its state allows an answer."""

    def __init__(self) -> None:
        self._replies: list[tuple[ReplyTo[Any], Callable[[], Any]]] = []

    def add(self, reply: ReplyTo[R], answer: Callable[[], R | None]) -> None:
        """Send what `answer` returns, at the first `settle` at which that is not None, or what it raises."""
        self._replies.append((reply, answer))

    def settle(self) -> None:
        """To be called when the state may have changed."""
        for reply, answer in self._replies:
            if not reply.done:
                try:
                    value = answer()
                except Exception as error:  # noqa: BLE001  it is the answer
                    reply.fail(error)
                else:
                    if value is not None:
                        reply.send(value)
        self._replies = [each for each in self._replies if not each[0].done]


class _Asked(Struct, frozen=True):
    """A message of an `ask`: it is not handled once nobody waits for its reply."""

    message: Any
    reply: ReplyTo[Any]


class Ref(Generic[M_contra]):
    """The address of an actor that takes messages of one type. It has the actor's mailbox, watchers and end."""

    def __init__(self, name: str, mailbox: Mailbox[Any]) -> None:
        self.name = name
        self.end: Terminated | None = None
        """Set when the actor has ended."""
        self._mailbox = mailbox
        self._watchers: dict[Ref[Any], tuple[type, ...]] = {}
        self._unanswered: set[ReplyTo[Any]] = set()
        self._stopping = anyio.Event()
        self._ended = anyio.Event()

    def tell(self, message: M_contra, *, urgent: bool = False) -> None:
        """Post a message; `Dispatcher` says when it is handled. Raises `MailboxFull` and `ActorStopped`."""
        if self.end is not None:
            raise ActorStopped(f"actor {self.name!r} has ended")
        self._mailbox.post(message, urgent)

    async def ask(self, message: Callable[[ReplyTo[R]], M_contra], *, timeout: float) -> R:  # noqa: ASYNC109
        """Post the message that `message` makes around a `ReplyTo`, and wait up to `timeout` seconds (finite) for that.

        Raises what the actor answers with, `AskTimeout`, `AskFailed`, `MailboxFull` and `ActorStopped`.
        """
        if not math.isfinite(timeout):
            raise ValueError(f"timeout: {timeout} is not a finite number of seconds")
        reply: ReplyTo[R] = ReplyTo()
        self._unanswered.add(reply)
        try:
            self.tell(_Asked(message(reply), reply))  # type: ignore[arg-type]  # unwrapped before it is handled
            return await reply.wait(timeout)
        finally:
            self._unanswered.discard(reply)

    def watch(self, watcher: "Ref[Any]", *kinds: type) -> None:
        """Tell `watcher` what this actor notifies its watchers of (of these types alone, if any are given), and its
        `Terminated`. The first call for each watcher counts."""
        if watcher not in self._watchers:
            self._watchers = {**self._watchers, watcher: kinds}  # a copy: `Context.notify` may iterate over the old one
            if self.end is not None:
                watcher._mailbox.post_reserved(self.end)

    def stop(self) -> None:
        """Let the actor end. Returns at once; see `wait_stopped`."""
        self._stopping.set()

    async def wait_stopped(self) -> Terminated:
        """Wait until the actor has ended."""
        await self._ended.wait()
        assert self.end is not None
        return self.end

    def _finish(self, error: Exception | None) -> None:
        """Synchronous: a cancelled task could not await here."""
        self.end = Terminated(self.name, error)
        self._mailbox.clear()
        for reply in self._unanswered:
            reply.fail(ActorStopped(f"actor {self.name!r} has ended"))
        self._ended.set()
        for watcher in self._watchers:
            if watcher.end is None:
                watcher._mailbox.post_reserved(self.end)


class Actor(Generic[M]):
    """Base of all actors. A subclass owns its state; others reach it by messages alone. Its methods run on one event
    loop, and none of them inside another."""

    context: "Context"
    """Set before `started`."""

    def started(self) -> None:
        """Runs before the first message."""

    def handle(self, message: M) -> None:
        """Handle one message. What takes time is for a task (`Context.start_soon`), which reports by a message."""
        raise NotImplementedError

    def restarted(self, error: Exception) -> None:
        """Give up what the actor holds, and begin anew: after a failure, by `OnFailure.RESTART`."""
        raise NotImplementedError

    async def stopped(self) -> None:
        """Runs once when the actor is to end, also by a cancel: shielded, for a bounded time. Its tasks and children
        have ended; messages are still handled."""


class Context:
    """What an actor may do beside handling messages. Its tasks and children end with it."""

    def __init__(
        self, dispatcher: Dispatcher, name: str, actor: Actor[Any], on_failure: OnFailure, stop_s: float
    ) -> None:
        self._dispatcher = dispatcher
        self._actor = actor
        self._on_failure = on_failure
        self._stop_s = stop_s
        self._mailbox: Mailbox[Any] = Mailbox(dispatcher, self._deliver)
        self.ref: Ref[Any] = Ref(name, self._mailbox)
        self._group = anyio.create_task_group()
        self._error: Exception | None = None
        actor.context = self

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Run a task of this actor. An exception in it is a failure of the actor."""
        self._group.start_soon(self._run, function, *args)

    def spawn(
        self, name: str, actor: Actor[M], *, on_failure: OnFailure = OnFailure.RESUME, stop_s: float = 10.0
    ) -> Ref[M]:
        """Start a child, which handles messages from the next turn of the loop on. `stop_s`: the bound of `stopped`."""
        child = Context(self._dispatcher, name, actor, on_failure, stop_s)
        self._group.start_soon(child.live, name=f"actor {name}")
        return child.ref

    def notify(self, notice: Any, *, urgent: bool = False) -> None:
        """Tell the watchers, in the order in which they began to watch. Raises `MailboxFull`."""
        for watcher, kinds in self.ref._watchers.items():
            if watcher.end is None and (not kinds or isinstance(notice, kinds)):
                watcher.tell(notice, urgent=urgent)

    async def live(self) -> None:
        """From the start of the actor to its end."""
        try:
            async with self._group:
                try:
                    self._actor.started()
                except Exception as error:  # noqa: BLE001  the supervisor's rule decides
                    self._fail(error, "started")
                self._mailbox.open()
                await self.ref._stopping.wait()
                self._group.cancel_scope.cancel()
        finally:
            with anyio.move_on_after(self._stop_s, shield=True):
                await self._run(self._actor.stopped)
            self.ref._finish(self._error)

    def _deliver(self, message: Any) -> None:
        reply: ReplyTo[Any] | None = None
        if type(message) is _Asked:
            message, reply = message.message, message.reply
            if reply.done:
                return
        try:
            self._actor.handle(message)
        except Exception as error:  # noqa: BLE001  the supervisor's rule decides
            self._fail(error, type(message).__name__)
            if reply is not None:
                failed = AskFailed(f"actor {self.ref.name!r} failed on the message")
                failed.__cause__ = error
                reply.fail(failed)

    async def _run(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        try:
            await function(*args)
        except Exception as error:  # noqa: BLE001  the supervisor's rule decides
            self._fail(error, getattr(function, "__name__", repr(function)))

    def _fail(self, error: Exception, where: str) -> None:
        log = structlog.get_logger("actor").bind(actor=self.ref.name, at=where)
        log.error("actor_failed", exc_info=error)
        rule = self._on_failure
        if rule is OnFailure.RESTART:
            try:
                self._actor.restarted(error)
            except Exception as second:
                log.error("actor_not_restarted", exc_info=second)
                rule = OnFailure.STOP
        if rule is OnFailure.STOP:
            self._error = self._error or error
            self.ref.stop()
