"""A streamed answer: its events in order, whichever connection sends them."""

import anyio
import anyio.lowlevel
import structlog

from gateway.errors import INTERNAL_TEXT, RequestError
from gateway.generation.field_names import FieldNames
from gateway.http.exchange import HttpExchange
from gateway.routing.failure import RequestFailure
from gateway.routing.request_group import RequestGroup
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnswerHead, AnswerRenderer, EventRenderer, Keep
from gateway.streaming.replay_buffer import EventLog
from gateway.streaming.request_end import close_request
from gateway.streaming.sse import is_sse
from protocol.errors import ErrorCode

_log = structlog.get_logger("gateway.streaming.reply")


def failure_error(failure: RequestFailure, fields: FieldNames, settings: GatewaySettings) -> RequestError:
    """The error that a client gets for a failure. `fields` are the names of its dialect."""
    if failure.code is ErrorCode.INTERNAL:
        _log.error("internal_failure", text=failure.text)
    retry_after_s = failure.retry_after_s or settings.retry_after_s
    return fields.error(failure.code, failure.text, failure.field, retry_after_s=retry_after_s)


class StreamedReply:
    """The events of one request. One task at a time reads it. With a `log`, rendered events can be sent again."""

    def __init__(
        self,
        group: RequestGroup,
        renderer: AnswerRenderer,
        exchange: HttpExchange,
        settings: GatewaySettings,
        log: EventLog | None = None,
        keep: Keep | None = None,
    ) -> None:
        """`exchange` is the one of the request; the reply may be sent over others later."""
        self.id = renderer.answer_id(exchange.token)
        """The id of the answer."""
        self.group = group
        self.log = log
        self.conventions = exchange.conventions
        self.content_type = renderer.content_type
        self.over = False
        """The last event was rendered."""
        self._settings = settings
        self._created = exchange.created
        self._record = exchange.record
        self._renderer = renderer
        self._keep_answer = keep
        self._events: EventRenderer | None = None
        self._id_prefix = f"id: {self.id}-".encode() if is_sse(renderer.content_type) else b""
        self._rendered = 0
        """The number of the last event."""

    async def send(self, exchange: HttpExchange, began: bool) -> None:
        """Send all events, to the end. Without `began` there is nothing to send yet, which a comment tells the client.
        Raises what the connection raises; the reply is still intact then."""
        if not began:
            await self._wait(exchange)
        while not self.over:
            try:
                chunk = self._render()
            except Exception:
                # The status was 200: the client still gets an error event, and the server logs the exception.
                await exchange.events(self._broken_off(), more=False)
                raise
            if self._keep_answer is not None:
                await self._keep_end(self._keep_answer)
            if chunk:
                await exchange.events(chunk, more=not self.over)
            if self.group.unread:
                await anyio.lowlevel.checkpoint()  # others are served between the pieces of a backlog
            elif not self.over and not await self.news():
                await self._wait(exchange)

    async def _keep_end(self, keep: Keep) -> None:
        """Keep the answer once its last event was rendered."""
        if self.over:
            await keep()

    def close(self) -> None:
        """Cancel the request, as no client reads it any more."""
        self.over = True
        close_request(self.group, self._record)

    async def news(self) -> bool:
        """Wait for something to send. False when nothing came for `waiting_comment_s` and there is no worker."""
        group = self.group
        while True:
            if not group.waiting:
                if await group.wait():
                    return True
                continue
            with anyio.move_on_after(self._settings.waiting_comment_s) as interval:
                if await group.wait():
                    return True
            if interval.cancelled_caught and group.waiting:
                return False

    async def _wait(self, exchange: HttpExchange) -> None:
        """Send comments until there is something to send."""
        await exchange.events(self._renderer.keep_alive)
        while not await self.news():
            await exchange.events(self._renderer.keep_alive)

    def _render(self) -> bytes:
        """Render what came since the last call, the last events included."""
        group, renderer = self.group, self._events or self._opened()
        # Read before taking: what comes later is in the next round.
        ended = group.ended
        try:
            events = renderer.deltas(group.take())
        except RequestError as refusal:
            group.cancel_nowait()
            refusal.request_id = group.request_id
            return self._end(renderer.error(refusal))
        if not ended or group.unread:
            return self._keep(events)
        if group.failure is not None:
            error = failure_error(group.failure, group.output.fields, self._settings)
            error.request_id = group.request_id
            return self._end(events + renderer.error(error))
        return self._end(events + renderer.end(group.token_counts(), continued=group.continued))

    def _end(self, events: list[bytes]) -> bytes:
        self.over = True
        return self._keep(events)

    def _broken_off(self) -> bytes:
        """The last events after a failure of the renderer: its own, or those of the dialect if it fails again."""
        error = RequestError(ErrorCode.INTERNAL, INTERNAL_TEXT)
        error.request_id = self.group.request_id
        try:
            return self._end(self._opened().error(error))
        except Exception as again:  # noqa: BLE001  a bug of the renderer; the first one is raised
            _log.error("error_not_rendered", request=self.group.request_id, exc_info=again)
            self.over = True
            return self.conventions.errors.last_events(error)

    def _keep(self, events: list[bytes]) -> bytes:
        """Number the next events, and log them where they may be sent again."""
        prefix, first = self._id_prefix, self._rendered + 1
        self._rendered += len(events)
        if prefix and len(events) == 1:  # as it mostly is
            events = [b"%s%d\n%s" % (prefix, first, events[0])]
        elif prefix:
            events = [b"%s%d\n%s" % (prefix, number, event) for number, event in enumerate(events, first)]
        if self.log is not None:
            self.log.append(events)
        return b"".join(events)

    def _opened(self) -> EventRenderer:
        """The renderer of events, which is made when the config digest of the worker is known."""
        if self._events is None:
            head = AnswerHead(self.id, self._created, self.group.model, self.group.config_digest)
            self._events = self._renderer.events(head)
        return self._events
