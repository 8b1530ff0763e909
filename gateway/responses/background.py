"""Responses that are generated without their client."""

import anyio
import anyio.abc
import anyio.lowlevel
import structlog

from gateway.errors import INTERNAL_TEXT, RequestError, invalid
from gateway.http.exchange import HttpExchange
from gateway.responses.answer.renderer import ResponseAnswer
from gateway.responses.event_feed import EventFeed
from gateway.responses.store.recording import Recording
from gateway.responses.store.stored import StoredResponse
from gateway.routing.request_group import RequestGroup
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnswerHead
from gateway.streaming.reply import failure_error
from gateway.streaming.request_end import close_request
from protocol.errors import ErrorCode

_log = structlog.get_logger("gateway.responses.background")


class BackgroundResponse:
    """One response that is generated. Its task, which `BackgroundResponses` starts, is the only one that changes it."""

    def __init__(
        self,
        group: RequestGroup,
        answer: ResponseAnswer,
        recording: Recording,
        exchange: HttpExchange,
        settings: GatewaySettings,
        feed: EventFeed | None,
    ) -> None:
        """`exchange` is the one of the request. `feed` gets the events, if clients may read them."""
        self.id = answer.answer_id(exchange.token)
        self.feed = feed
        self.ended = anyio.Event()
        """It is stored in its last state."""
        self._group = group
        self._recording = recording
        self._record = exchange.record
        self._errors = exchange.conventions.errors
        self._settings = settings
        self._events = answer.events(AnswerHead(self.id, exchange.created, group.named, group.config_digest))
        self._over = False
        self._scope = anyio.CancelScope()
        self._append(self._events.deltas([]))

    @property
    def stored(self) -> StoredResponse:
        """The response in its state."""
        events = self._events
        return self._recording.ended or self._recording.stored(self.id, events.status, events.under_way())

    async def run(self) -> None:
        """Generate it to its end."""
        try:
            with self._scope:
                await self._recording.put(self.stored)
                while not self._over:
                    await self._group.wait()
                    self._take()
                    await anyio.lowlevel.checkpoint()
            if not self._over:
                self._append(self._events.cancel(), over=True)
            await self._recording.keep()
        finally:
            close_request(self._group, self._record)
            self.ended.set()
        if self.feed is not None:
            await anyio.lowlevel.checkpoint()  # readers take the last events
            self.feed.trim()

    def cancel(self) -> None:
        """End it, as its client asks."""
        self._scope.cancel()

    def break_off(self) -> None:
        """End its events after a bug, if they have no end yet."""
        if not self._over:
            error = RequestError(ErrorCode.INTERNAL, INTERNAL_TEXT)
            self._append([self._errors.last_events(error)], over=True)

    def _take(self) -> None:
        """Render what came since the last call."""
        group = self._group
        ended = group.ended
        try:
            self._append(self._events.deltas(group.take()))
            if not ended or group.unread:
                return
            if group.failure is not None:
                last = self._events.error(failure_error(group.failure, group.output.fields, self._settings))
            else:
                last = self._events.end(group.token_counts(), continued=group.continued)
        except RequestError as error:
            last = self._events.error(error)
        except Exception as error:  # noqa: BLE001  a bug of the renderer ends this response, and no other
            _log.error("response_not_rendered", request=group.request_id, exc_info=error)
            last = self._events.error(RequestError(ErrorCode.INTERNAL, INTERNAL_TEXT))
        self._append(last, over=True)

    def _append(self, events: list[bytes], *, over: bool = False) -> None:
        self._over = over
        if self.feed is not None:
            self.feed.append(events, over=over)


class BackgroundResponses:
    """The responses that are generated, and the events of the last ones that were, which can still be read. There are
    at most `max_background_responses` of each."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._tasks: anyio.abc.TaskGroup | None = None
        self._live: dict[str, tuple[str, BackgroundResponse]] = {}
        """By id, with their owners."""
        self._feeds: dict[str, tuple[str, EventFeed]] = {}

    async def run(self) -> None:
        """Generate responses until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    async def idle(self) -> None:
        """Wait until every response has ended and is stored."""
        while self._live:
            _, response = next(iter(self._live.values()))
            await response.ended.wait()
            await anyio.lowlevel.checkpoint()

    def check_room(self) -> None:
        """Raise `RequestError` when one more response cannot be generated."""
        most = self._settings.max_background_responses
        if self._tasks is None or not most:
            text = "`background`: this server generates nothing in the background (max_background_responses)"
            raise invalid("background", text, ErrorCode.UNSUPPORTED)
        if len(self._live) >= most:
            text = f"{most} responses are being generated in the background (max_background_responses)"
            retry = self._settings.retry_after_s
            raise RequestError(ErrorCode.OVERLOADED, text, field="background", retry_after_s=retry)

    def start(self, owner: str, response: BackgroundResponse) -> None:
        """Generate a response. `check_room` must have allowed it in this turn of the event loop."""
        if self._tasks is None:
            raise RuntimeError("check_room was not called")
        self._live[response.id] = (owner, response)
        if response.feed is not None:
            if len(self._feeds) >= self._settings.max_background_responses:
                del self._feeds[next(each for each in self._feeds if each not in self._live)]
            self._feeds[response.id] = (owner, response.feed)
        self._tasks.start_soon(self._generate, response)

    async def _generate(self, response: BackgroundResponse) -> None:
        try:
            await response.run()
        except Exception as error:  # noqa: BLE001  a bug ends this response, and neither others nor the gateway
            _log.error("response_failed", response=response.id, exc_info=error)
            response.break_off()
        finally:
            del self._live[response.id]

    def find(self, owner: str, response: str) -> BackgroundResponse | None:
        """The response with this id, of this owner, while it is generated."""
        found = self._live.get(response)
        return None if found is None or found[0] != owner else found[1]

    def feed(self, owner: str, response: str) -> EventFeed | None:
        """The events of a response of this owner that can be read."""
        found = self._feeds.get(response)
        return None if found is None or found[0] != owner else found[1]

    def forget(self, owner: str, response: str) -> None:
        """Drop the events of a response of this owner."""
        if self.feed(owner, response) is not None:
            del self._feeds[response]
