"""Actors: each owns its state, handles one typed message at a time, and is reached by a ref."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, Generic, TypeVar

import anyio
import structlog
from msgspec import Struct

from actors.mailbox import Dispatcher, Mailbox, MailboxFull

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")

MAX_DEFERRED = 64
"""Replies of one actor that wait for its state to change; further asks are refused."""


class ActorStopped(Exception):
    """Raised by `tell` and `ask` when the actor has ended, also while an `ask` waits."""


class AskTimeout(Exception):
    """Raised by `ask` when its deadline has passed. A message that still waits is dropped."""


class AskFailed(Exception):
    """Raised by `ask` when the handler raised; the handler's exception is the cause."""


class OnFailure(Enum):
    """The rule for an actor whose handler or task has raised, which is logged in full: keep its state, reset it
    (`Actor.restarted`), or stop it (`Terminated` has the error)."""

    RESUME = auto()
    RESTART = auto()
    STOP = auto()


class Terminated(Struct, frozen=True):
    """Notifies each watcher once that an actor has ended; `error` is the failure that stopped it."""

    actor: str
    error: Exception | None


class ReplyTo(Generic[R]):
    """Takes the reply to one `ask`, at once or later. The first reply counts."""

    def __init__(self) -> None:
        self._future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    @property
    def done(self) -> bool:
        """True when it was answered, or the caller waits no more."""
        return self._future.done()

    def send(self, value: R) -> None:
        """Reply with a value."""
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: Exception) -> None:
        """Reply with an error, which `ask` raises."""
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # retrieved, also when the caller is cancelled now

    async def wait(self, timeout: float) -> R:  # noqa: ASYNC109  # a deadline is part of asking, not an option
        """Wait up to `timeout` seconds for the reply. Raises `AskTimeout`, or the error that is the reply."""
        try:
            with anyio.move_on_after(timeout):
                return await self._future
        finally:
            self._future.cancel()
        raise AskTimeout(f"no reply within {timeout:g} s")


class TooManyAsks(Exception):
    """Raised by `ask` when as many others wait already for the state of the actor to change."""


class DeferredReplies:
    """Replies that an actor sends when its state allows it: at most `MAX_DEFERRED`."""

    def __init__(self) -> None:
        self._replies: list[tuple[ReplyTo[Any], Callable[[], Any]]] = []

    def add(self, reply: ReplyTo[R], answer: Callable[[], R | None]) -> None:
        """Send the first result of `answer` that is not None, or its exception; it is called at each `settle`. Without
        room, the reply is `TooManyAsks`."""
        self._replies = [each for each in self._replies if not each[0].done]  # whose callers wait no more
        if len(self._replies) >= MAX_DEFERRED:
            reply.fail(TooManyAsks(f"{MAX_DEFERRED} asks wait already: try again later"))
        else:
            self._replies.append((reply, answer))

    def settle(self) -> None:
        """Check each reply. To be called when the state may have changed."""
        for reply, answer in self._replies:
            if not reply.done:
                try:
                    if (value := answer()) is not None:
                        reply.send(value)
                except Exception as error:  # noqa: BLE001  it is the reply
                    reply.fail(error)
        self._replies = [each for each in self._replies if not each[0].done]


class _Asked(Struct, frozen=True):
    """The message of an `ask`; it is dropped once the caller waits no more."""

    message: Any
    reply: ReplyTo[Any]


class Ref(Generic[M_contra]):
    """The address of an actor that takes messages of one type. Owns its mailbox and watchers."""

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
        """Post what `message` makes of a `ReplyTo`, and wait up to `timeout` seconds (finite) for the reply. Raises the
        error that is the reply, `AskTimeout`, `AskFailed`, `MailboxFull` and `ActorStopped`."""
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
        """Send `watcher` this actor's notices (only those of `kinds`, if given) and its `Terminated`. Further calls for
        the same watcher have no effect."""
        if watcher not in self._watchers:
            self._watchers = {**self._watchers, watcher: kinds}  # a copy: `Context.notify` may iterate over the old one
            if self.end is not None:
                watcher._mailbox.post_reserved(self.end)

    def stop(self) -> None:
        """Stop the actor. Returns at once; see `wait_stopped`."""
        self._stopping.set()

    async def wait_stopped(self) -> Terminated:
        """Wait until the actor has ended."""
        await self._ended.wait()
        assert self.end is not None
        return self.end

    def _finish(self, error: Exception | None) -> None:  # synchronous: a cancelled task could not await here
        self.end = Terminated(self.name, error)
        for reply in self._unanswered:
            reply.fail(ActorStopped(f"actor {self.name!r} has ended"))
        self._ended.set()
        for watcher in self._watchers:
            if watcher.end is None:
                watcher._mailbox.post_reserved(self.end)


class Actor(Generic[M]):
    """Base class of actors. Its methods run on one event loop, and `handle` never inside another `handle`. A message
    that `started`, `stopped` or a task posts may be handled before that post returns."""

    context: "Context"
    """Set before `started`."""

    def started(self) -> None:
        """Called before the first message."""

    def handle(self, message: M) -> None:
        """Handle one message. Work that takes time belongs in a task (`Context.start_soon`) that posts a message."""
        raise NotImplementedError

    def restarted(self, error: Exception) -> None:
        """Reset the state after a failure, under `OnFailure.RESTART`."""
        raise NotImplementedError

    def dropped(self, message: M) -> None:
        """Release what a message owns that was not handled, after the actor has ended."""

    async def stopped(self) -> None:
        """Called once when the actor stops, also by a cancel, after its tasks and children have ended: shielded, and
        bounded in time. Messages are still handled."""


class Context:
    """Owns the tasks and children of one actor, which end with it."""

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
        """Run a task. An exception in it is a failure of the actor."""
        self._group.start_soon(self._run, function, *args)

    def spawn(
        self, name: str, actor: Actor[M], *, on_failure: OnFailure = OnFailure.RESUME, stop_s: float = 10.0
    ) -> Ref[M]:
        """Start a child, which handles messages from the next turn of the loop on. `stop_s` bounds `stopped`."""
        child = Context(self._dispatcher, name, actor, on_failure, stop_s)
        self._group.start_soon(child.live, name=f"actor {name}")
        return child.ref

    def notify(self, notice: Any, *, urgent: bool = False) -> None:
        """Post a notice to the watchers, in the order in which they began to watch. If one has no room, the others get
        it all the same, and `MailboxFull` is raised: a watcher must never miss a notice unnoticed, and the notifier
        can end what the notice was about."""
        full: MailboxFull | None = None
        for watcher, kinds in self.ref._watchers.items():
            if watcher.end is None and (not kinds or isinstance(notice, kinds)):
                try:
                    watcher.tell(notice, urgent=urgent)
                except MailboxFull as error:
                    full = error
        if full is not None:
            raise full

    async def live(self) -> None:
        """Run the actor from its start to its end."""
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
            dropped = self._mailbox.clear()
            self.ref._finish(self._error)
            for message in dropped:
                self._actor.dropped(message)

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
