"""An actor for tests: it counts what it is told, fails and blocks on demand, and writes down its life."""

from dataclasses import dataclass
from typing import Any

import anyio

from actors.actor import Actor, Ref, Terminated
from actors.supervision.policy import RestartPolicy

AT_ONCE = RestartPolicy(max_failures=3, first_delay_s=0.0, max_delay_s=0.0)


@dataclass(frozen=True)
class Fail:
    text: str


@dataclass(frozen=True)
class Block:
    """Handled for as long as the event is not set."""

    until: anyio.Event


@dataclass(frozen=True)
class Watch:
    ref: Ref[Any]


class Counter(Actor[Any]):
    """Counts what it is told, fails on demand, and writes down its life."""

    def __init__(self, diary: list[str]) -> None:
        self.diary = diary
        self.count = 0

    async def started(self) -> None:
        self.diary.append("started")

    async def handle(self, message: Any) -> Any:
        match message:
            case Fail(text):
                raise LookupError(text)
            case Block(until):
                self.diary.append("blocked")
                await until.wait()
            case Watch(ref):
                self.context.watch(ref)
            case "stop":
                self.context.stop()
            case int():
                self.count += message
        return self.count

    async def terminated(self, notice: Terminated) -> None:
        self.diary.append(f"{notice.actor}: {notice.reason}")

    async def stopped(self, failure: Exception | None) -> None:
        self.diary.append(f"stopped: {failure}")
