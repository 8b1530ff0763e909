"""A streamed answer: its events in order, whichever connection sends them."""

from collections.abc import Sequence
from typing import NamedTuple

import anyio
import anyio.lowlevel
import structlog

from gateway.errors import INTERNAL_TEXT, RefusalCode, RequestError
from gateway.generation.field_names import FieldNames
from gateway.http.exchange import HttpExchange
from gateway.routing.failure import RequestFailure
from gateway.routing.request_group import RequestGroup
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnswerHead, AnswerRenderer, EventRenderer, Keep, NumberedEvents
from gateway.streaming.moving.output_positions import OutputDiffers, OutputPositions
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


class ReplyOrigin(NamedTuple):
    """The beginning of a reply, which another gateway may have made."""

    token: str
    """The token of the answer's id."""
    created: int
    number: int = 0
    """The number of the last event that the client has."""


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
        positions: OutputPositions | None = None,
        origin: ReplyOrigin | None = None,
    ) -> None:
        """`exchange` is the one of the request; the reply may be sent over others later. With `positions` the ids of
        events have them. `origin` is by default the exchange's."""
        origin = origin or ReplyOrigin(exchange.token, exchange.created)
        self.id = renderer.answer_id(origin.token)
        """The id of the answer."""
        self.group = group
        self.log = log
        self.conventions = exchange.conventions
        self.content_type = renderer.content_type
        self.over = False
        """The last event was rendered."""
        self._settings = settings
        self._created = origin.created
        self._record = exchange.record
        self._renderer = renderer
        self._keep_answer = keep
        self._events: EventRenderer | None = None
        self._id_prefix = f"id: {self.id}-".encode() if is_sse(renderer.content_type) else b""
        self._rendered = origin.number
        """The number of the last event."""
        self._positions = positions
        self._begun = False
        """The renderer has got some output."""

    async def send(self, exchange: HttpExchange, began: bool) -> None:
        """Send all events, to the end. Without `began` there is nothing to send yet, which a comment tells the client.
        Raises what the connection raises; the reply is still intact then."""
        if not began:
            await self._wait(exchange)
        sent = anyio.current_time()
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
                sent = anyio.current_time()
            elif anyio.current_time() - sent > self._settings.waiting_comment_s:
                await exchange.events(self._renderer.keep_alive)  # what the client has is computed again
                sent = anyio.current_time()
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
        if self._positions is not None:
            return self._render_marked(group, renderer, self._positions)
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

    def _render_marked(self, group: RequestGroup, renderer: EventRenderer, positions: OutputPositions) -> bytes:
        """Render what came since the last call, as events whose ids have positions."""
        ended = group.ended
        events: list[bytes] = []
        marks: list[str] = []
        try:
            for delta in positions.parts(group.take()):
                known, new = positions.split(delta)
                if known is not None:
                    self._begun = True
                    renderer.deltas([known])
                if new is None:
                    continue
                pending = positions.pending(new.index)
                rendered = self._numbered(renderer, positions, len(events) - pending).deltas([new])
                self._begun = True
                skipped = positions.skip(new.index, len(rendered))
                marks += positions.marks(new, len(rendered))[skipped:]
                events += rendered[skipped:]
            if not ended or group.unread:
                return self._keep(events, marks)
            if group.failure is None:
                positions.check_all()
        except OutputDiffers:
            text = "the stream cannot be continued here: its beginning was computed again, and differs"
            return self._end_early(RequestError(RefusalCode.STREAM_LOST, text), events, marks)
        except RequestError as refusal:
            return self._end_early(refusal, events, marks)
        if group.failure is not None:
            error = failure_error(group.failure, group.output.fields, self._settings)
            return self._end_early(error, events, marks)
        self.over = True
        pending = positions.pending(len(group.sequences))
        renderer = self._numbered(renderer, positions, len(events) - pending)
        rendered = [] if self._begun else renderer.deltas([])
        rendered += renderer.end(group.token_counts(), continued=group.continued)
        skipped = positions.skip(len(group.sequences), len(rendered))
        marks += positions.last_marks(len(rendered))[skipped:]
        return self._keep(events + rendered[skipped:], marks)

    def _numbered(self, renderer: EventRenderer, positions: OutputPositions, more: int) -> EventRenderer:
        """The renderer, which continues after as many more events than were numbered."""
        if positions.resumed and isinstance(renderer, NumberedEvents):
            renderer.continue_after(self._rendered + more)
        return renderer

    def _end_early(self, error: RequestError, events: list[bytes], marks: list[str]) -> bytes:
        """End a reply whose ids have positions with an error, after these events."""
        assert self._positions is not None
        group = self.group
        group.cancel_nowait()
        error.request_id = group.request_id
        self.over = True
        renderer = self._numbered(self._opened(), self._positions, len(events))
        last = renderer.error(error)
        return self._keep(events + last, marks + self._positions.last_marks(len(last)))

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

    def _keep(self, events: list[bytes], marks: Sequence[str] = ()) -> bytes:
        """Number the next events, and log them where they may be sent again. `marks` follow their numbers."""
        prefix, first = self._id_prefix, self._rendered + 1
        self._rendered += len(events)
        if marks:
            numbered = enumerate(zip(events, marks, strict=True), first)
            events = [b"%s%d%s\n%s" % (prefix, number, mark.encode(), event) for number, (event, mark) in numbered]
        elif prefix and len(events) == 1:  # as it mostly is
            events = [b"%s%d\n%s" % (prefix, first, events[0])]
        elif prefix:
            events = [b"%s%d\n%s" % (prefix, number, event) for number, event in enumerate(events, first)]
        if self.log is not None:
            self.log.append(events)
        return b"".join(events)

    def _opened(self) -> EventRenderer:
        """The renderer of events, which is made when the config digest of the worker is known."""
        if self._events is None:
            head = AnswerHead(self.id, self._created, self.group.named, self.group.config_digest)
            self._events = self._renderer.events(head)
        return self._events
