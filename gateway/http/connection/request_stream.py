"""One request on a connection, and the app that answers it."""

from collections.abc import Awaitable, Callable
from typing import Any

from hypercorn.config import Config
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import AppWrapper, TaskGroup

from gateway.http.connection.body_queue import BodyQueue


class _AppTask:
    """Takes the place of Hypercorn's task group where a stream starts its app, for the queue of the body."""

    def __init__(self, group: TaskGroup, queue: BodyQueue, on_end: Callable[[], None]) -> None:
        self._group = group
        self._queue = queue
        self._on_end = on_end

    async def spawn_app(
        self, app: AppWrapper, config: Config, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Any], Awaitable[None]]:
        """Start the app. Returns the function that takes messages for it."""
        self._group.spawn(self._run, app, config, scope, send)
        return self._queue.put

    async def _run(self, app: AppWrapper, config: Config, scope: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        try:
            await app(scope, self._queue.receive, send, None, None)
        except Exception:  # noqa: BLE001 - the bugs of an app must not end the connection's other streams
            await config.log.exception("Error in ASGI Framework")
        finally:
            self._on_end()
            await self._queue.close()
            await send(None)


class RequestStream(HTTPStream):  # type: ignore[misc]  # Hypercorn has no types
    """Hypercorn's stream with a `BodyQueue`."""

    def __init__(
        self,
        *arguments: Any,
        most: int | None,
        on_read: Callable[[int], Awaitable[None]],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_end` is called when the app has ended."""
        super().__init__(*arguments)
        self.app_put: Callable[[Any], Awaitable[None]] | None = None
        group: TaskGroup = self.task_group
        self.task_group: Any = _AppTask(group, BodyQueue(most, on_read), on_end)
