"""A streamed answer: its events in their order, whichever connection they go to."""

import anyio
import structlog

from gateway.errors import INTERNAL_TEXT, RequestError
from gateway.http.exchange import Exchange
from gateway.openai.sse import WAITING, EventWriter
from gateway.routing.plan import Form
from gateway.routing.request_group import Call
from gateway.routing.sequence import Failure
from gateway.settings import GatewaySettings
from gateway.streaming.replay_buffer import EventLog
from protocol.errors import ErrorCode

_log = structlog.get_logger("gateway.streaming.reply")


def failure_error(failure: Failure, settings: GatewaySettings) -> RequestError:
    """What a client is told of a failure."""
    if failure.code is ErrorCode.INTERNAL:
        _log.error("internal_failure", text=failure.text)
    return RequestError(failure.code, failure.text, field=failure.field, retry_after_s=settings.retry_after_s)


def let_go(call: Call) -> None:
    """Cancel what still lives of a call, and log how it ended. Synchronous, for a `finally` under cancellation."""
    outcome = "client_gone" if not call.ended else "answered" if call.failure is None else call.failure.code.value
    call.cancel_nowait()
    _log.info("request_ended", request=call.request, worker=call.worker, model=call.model, outcome=outcome)


class Reply:
    """The events of one call. One task at a time reads it. With a `log`, what was rendered can be sent again."""

    def __init__(
        self,
        form: Form,
        call: Call,
        settings: GatewaySettings,
        *,
        stream_id: str,
        created: int,
        log: EventLog | None = None,
    ) -> None:
        self.id = stream_id
        """The `id` of the answer's chunks."""
        self.call = call
        self.log = log
        self.over = False
        """The last event was rendered."""
        self._form = form
        self._settings = settings
        self._created = created
        self._writer: EventWriter | None = None

    async def send(self, exchange: Exchange, began: bool) -> None:
        """Send what comes, to the end. Without `began` there was nothing yet, and the client is told so. Raises what
        the connection raises, which says nothing of the answer."""
        if not began:
            await self._wait(exchange)
        while not self.over:
            try:
                chunk = self._render()
            except Exception:
                # A defect of ours, after the 200: the client still gets a typed end, and the server logs it.
                await exchange.events(self._end(RequestError(ErrorCode.INTERNAL, INTERNAL_TEXT)), more=False)
                raise
            if chunk:
                await exchange.events(chunk, more=not self.over)
            if not self.over and not await self.news():
                await self._wait(exchange)

    def close(self) -> None:
        """Nobody reads it any more: let go of its call."""
        self.over = True
        let_go(self.call)

    async def news(self) -> bool:
        """Wait for something to send. False when none came for a while, because there is no worker."""
        call = self.call
        while True:
            if not call.waiting:
                if await call.wait():
                    return True
                continue
            with anyio.move_on_after(self._settings.waiting_comment_s) as interval:
                if await call.wait():
                    return True
            if interval.cancelled_caught and call.waiting:
                return False

    async def _wait(self, exchange: Exchange) -> None:
        """Comment on the wait until there is something to send."""
        await exchange.events(WAITING)
        while not await self.news():
            await exchange.events(WAITING)

    def _render(self) -> bytes:
        """The events of what came since the last time, the final ones included."""
        call, form, writer = self.call, self._form, self._opened()
        # Read before taking: what comes after this look is in the next round.
        ended = call.ended
        chunk = writer.pieces(call.take(form.by_token))
        if ended:
            if call.failure is not None:
                return self._end(failure_error(call.failure, self._settings), chunk)
            if form.include_usage:
                chunk += writer.usage(*call.usage(form.per_prompt), continued=call.continued)
            return self._end(None, chunk)
        if self.log is not None:
            self.log.append(chunk)
        return chunk

    def _end(self, error: RequestError | None, chunk: bytes = b"") -> bytes:
        writer = self._opened()
        if error is not None:
            chunk += writer.error(error)
        chunk += writer.done()
        self.over = True
        if self.log is not None:
            self.log.append(chunk)
        return chunk

    def _opened(self) -> EventWriter:
        """The writer, which needs to know what computes the answer."""
        if self._writer is None:
            form = self._form
            self._writer = EventWriter(
                chat=form.chat,
                answer_id=self.id,
                created=self._created,
                model=self.call.model,
                fingerprint=self.call.fingerprint,
                include_usage=form.include_usage,
                return_token_ids=form.return_token_ids,
                logprobs=form.logprobs,
            )
        return self._writer
