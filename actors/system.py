"""The root of all actors: a task group, and the dispatcher that they share."""

from types import TracebackType
from typing import Self

from actors.actor import Actor, Context, OnFailure
from actors.mailbox import Dispatcher


class ActorSystem(Context):
    """`async with ActorSystem() as system`: leaving the block ends every actor, and waits until all have ended.

    Structured: a child's task is inside its parent's task group, so children end before their parent, and nothing
    outlives the block. Needs asyncio underneath.
    """

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
