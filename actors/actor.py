"""What an actor is: state with one owner, one typed message at a time; and the ref by which others reach it."""

import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from actors.mailbox import Mailbox, MailboxClosed

if TYPE_CHECKING:
    from actors.system import Cell

M = TypeVar("M")
R = TypeVar("R")


class ActorStopped(Exception):
    """Raised by `tell` and `ask` when the actor is gone, and by an `ask` that it left unanswered when it went."""


class AskTimeout(Exception):
    """Raised by `ask` when its deadline passed. The actor may have handled the message, may be at it, or never will."""


class AskFailed(Exception):
    """Raised by `ask` when the handler raised; the handler's exception is the cause."""


class Unrecoverable(Exception):
    """Raised by an actor whose failure a restart cannot heal: its policy is not asked, and it ends."""


@dataclass(frozen=True, slots=True)
class Terminated:
    """Tells a watcher, exactly once, that an actor it watches has ended for good. A restart is not an end."""

    actor: str
    """The name of the actor."""
    reason: str
    failed: bool


class ReplySlot(Generic[R]):
    """Where one reply goes. Filled at most once; filling it when nobody waits any more does nothing."""

    __slots__ = ("_done", "_error", "_value", "abandoned")

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._value: R | None = None
        self._error: Exception | None = None
        self.abandoned = False

    @property
    def filled(self) -> bool:
        return self._done.is_set()

    def resolve(self, value: R) -> None:
        """Fill the slot with the reply."""
        if not self.filled:
            self._value = value
            self._done.set()

    def fail(self, error: Exception) -> None:
        """Fill the slot with an error that `wait` raises."""
        if not self.filled:
            self._error = error
            self._done.set()

    async def wait(self, timeout: float) -> R:  # noqa: ASYNC109  # a deadline is part of asking, not an option
        """The reply, within `timeout` seconds. Raises `AskTimeout`, or the error that the slot was filled with."""
        try:
            with anyio.move_on_after(timeout):
                await self._done.wait()
        finally:
            self.abandoned = not self.filled
        if not self.filled:
            raise AskTimeout(f"no reply within {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # resolve() was called with an R


@dataclass(frozen=True, slots=True)
class Envelope(Generic[M]):
    """A message in a mailbox, with the slot of the one who asked."""

    message: M
    reply: ReplySlot[Any] | None = None


class Ref(Generic[M]):
    """The address of an actor that takes messages of type M. It stays good over restarts."""

    def __init__(self, cell: "Cell[M]", mailbox: Mailbox[Envelope[M]]) -> None:
        self._cell = cell
        self._mailbox = mailbox

    def __repr__(self) -> str:
        return f"Ref({self.name!r})"

    @property
    def name(self) -> str:
        return self._cell.name

    @property
    def stopped(self) -> bool:
        """True once the actor has ended for good."""
        return self._cell.ended

    def tell(self, message: M, *, urgent: bool = False) -> None:
        """Post a message. Raises `MailboxFull`, or `ActorStopped` when the actor takes no more."""
        self._post(Envelope(message), urgent)

    async def ask(self, message: M, *, timeout: float, urgent: bool = False) -> Any:  # noqa: ASYNC109
        """Post a message and wait up to `timeout` seconds (finite) for what its handler returns.

        Raises `MailboxFull` and `ActorStopped` as `tell` does, `AskTimeout`, and `AskFailed`. When the asker gives up
        or is cancelled before the message was begun, it is not handled any more.
        """
        if not math.isfinite(timeout):
            raise ValueError(f"timeout: {timeout} is not a finite number of seconds")
        slot: ReplySlot[Any] = ReplySlot()
        self._post(Envelope(message, slot), urgent)
        return await slot.wait(timeout)

    def stop(self) -> None:
        """Let the actor end after the messages that wait already. Returns at once; see `wait_stopped`."""
        self._mailbox.close()
        self._cell.stop_requested()

    async def wait_stopped(self) -> Terminated:
        """Wait until the actor has ended for good."""
        return await self._cell.wait_ended()

    def _post(self, envelope: Envelope[M], urgent: bool) -> None:
        try:
            self._mailbox.post_nowait(envelope, urgent=urgent)
        except MailboxClosed:
            raise ActorStopped(f"actor {self.name!r} takes no more messages") from None


class Context:
    """What an actor may do beside handling messages. Everything started here ends when the actor ends or restarts."""

    def __init__(self, cell: "Cell[Any]", group: anyio.abc.TaskGroup) -> None:
        self._cell = cell
        self._group = group

    @property
    def ref(self) -> Ref[Any]:
        """The actor's own ref."""
        return self._cell.ref

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Run a task of this actor. An exception in it is the actor's own failure."""
        self._group.start_soon(function, *args)

    def spawn(self, name: str, factory: "Callable[[], Actor[M]]", **options: Any) -> Ref[M]:
        """Start a child; `options` are those of `ActorSystem.spawn`. What it escalates is this actor's failure."""
        return self._cell.system.spawn_in(self._group, name, factory, **options)

    def watch(self, ref: Ref[Any]) -> None:
        """Have one `Terminated` posted to this actor when `ref` has ended (at once when it has). Twice is once."""
        ref._cell.watched_by(self._cell)

    def stop(self) -> None:
        """Let this actor end after the messages that wait already."""
        self._cell.ref.stop()


class Actor(Generic[M]):
    """Base of all actors. A subclass owns its state; nobody else touches it.

    The factory makes a fresh one for every start, so nothing of a failed one is kept. The mailbox stays.
    """

    context: Context
    """Set before `started`."""

    async def started(self) -> None:
        """Runs before the first message."""

    async def handle(self, message: M) -> Any:
        """Handle one message; what it returns is the reply to an `ask`. An exception is a failure of this actor."""
        raise NotImplementedError

    async def terminated(self, notice: Terminated) -> None:
        """Handle the end of a watched actor, in its turn among the messages."""

    async def stopped(self, failure: Exception | None) -> None:
        """Runs once after every start, also when it failed or was cancelled (shielded, for `stop_timeout` seconds at
        most). Child actors and tasks have ended before. `failure` is why, or None for an ordinary end."""
