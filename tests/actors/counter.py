"""An actor for tests: it counts, answers at once or later, fails on demand, and writes down its life."""

from dataclasses import dataclass
from typing import Any

import anyio

from actors.actor import Actor, ReplyTo


@dataclass(frozen=True)
class Add:
    number: int
    reply: ReplyTo[int] | None = None


@dataclass(frozen=True)
class Fail:
    text: str
    reply: ReplyTo[int] | None = None


@dataclass(frozen=True)
class AnswerAt:
    """Answered when the count has reached this."""

    count: int
    reply: ReplyTo[int]


@dataclass(frozen=True)
class Notify:
    notice: Any
    urgent: bool = False


class Counter(Actor[Any]):
    """Writes into `diary` what happens to it, and each message that it has no other use for."""

    def __init__(self, diary: list[str] | None = None) -> None:
        self.diary = [] if diary is None else diary
        self.count = 0
        self.later: list[AnswerAt] = []
        self.hold = anyio.Event()
        self.hold.set()

    def started(self) -> None:
        self.diary.append("started")

    def handle(self, message: Any) -> None:
        match message:
            case Add(number, reply):
                self.count += number
                if reply is not None:
                    reply.send(self.count)
            case Fail(text):
                raise LookupError(text)
            case AnswerAt():
                self.later.append(message)
            case Notify(notice, urgent):
                self.context.notify(notice, urgent=urgent)
            case _:
                self.diary.append(str(message))
        for each in self.later:
            if self.count >= each.count:
                each.reply.send(self.count)

    def restarted(self, error: Exception) -> None:
        self.diary.append(f"restarted: {error}")
        if str(error) == "for good":
            raise ValueError("cannot begin anew")
        self.count = 0

    async def stopped(self) -> None:
        await self.hold.wait()
        self.diary.append("stopped")
