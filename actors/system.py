"""The root of all actors: a task group, and the dispatcher that they share."""

from types import TracebackType
from typing import Self

from actors.actor import Actor, Context, OnFailure
from actors.mailbox import Dispatcher


class ActorSystem(Context):
    """Runs actors inside an `async with` block: leaving it stops every actor, children before their parents, and waits
    until all have ended. Needs asyncio."""

    def __init__(self) -> None:
        super().__init__(Dispatcher(), "system", Actor(), OnFailure.RESUME, 0.0)

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(kind, error, trace)
