"""The endpoint behind both `/v1/completions` and `/v1/chat/completions`, on plain ASGI."""

from collections.abc import Callable

import anyio
import structlog
from starlette.types import Receive, Scope, Send

from gateway.body_budget import HeldBody
from gateway.errors import INTERNAL_TEXT, RequestError
from gateway.http.errors import ErrorRenderer
from gateway.http.exchange import ClientGone, Exchange
from gateway.openai.rendering import whole_answer
from gateway.routing.plan import Form, Plan
from gateway.routing.request_group import Call
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.reply import Reply, failure_error, let_go
from gateway.streaming.resumable import Reader
from gateway.streaming.resume_endpoint import PickUp
from protocol.errors import ErrorCode

_log = structlog.get_logger("gateway.openai.endpoint")


class Generate:
    """Body in, tokens out. An ASGI app; every exchange ends with one answer, one error, or a client that left."""

    def __init__(
        self,
        router: Router,
        settings: GatewaySettings,
        decode: Callable[[bytes], Plan],
        pick_up: PickUp,
        errors: ErrorRenderer,
    ) -> None:
        self._router = router
        self._settings = settings
        self._decode = decode
        self._pick_up = pick_up
        self._errors = errors
        self._resumables = pick_up.streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._settings, self._errors)
        body = HeldBody(self._router.bodies)
        try:
            admitted = self._admit(await exchange.body(body), body, exchange)
        except RequestError as error:
            _log.info("request_refused", request=exchange.request_id, status=error.status, code=error.code)
            await exchange.refuse(error)
            return
        except ClientGone:
            return
        except Exception:
            await exchange.refuse(RequestError(ErrorCode.INTERNAL, INTERNAL_TEXT))
            raise
        finally:
            body.release()
        if admitted is None:
            await self._pick_up.resume(exchange)
        elif admitted[0].stream:
            await self._stream(exchange, *admitted)
        else:
            await self._whole(exchange, *admitted)

    def _admit(self, raw: bytes, body: HeldBody, exchange: Exchange) -> tuple[Form, Call] | None:
        """None for a client that sends its request again, as EventSource would: it wants the rest of the answer, not
        another. Raises `RequestError`."""
        if exchange.last_event_id:
            return None
        plan = self._decode(raw)
        if plan.form.resume_s:
            self._resumables.check_room()
        return plan.form, self._router.open(plan, exchange.request_id, body, exchange.key)

    async def _whole(self, exchange: Exchange, form: Form, call: Call) -> None:
        async def answer(_: anyio.CancelScope) -> None:
            await call.wait()
            if call.failure is not None:
                await self._fail(exchange, call)
            else:
                await exchange.respond(200, whole_answer(form, call, _answer_id(exchange, form), exchange.created))

        try:
            await exchange.attended(answer)
        finally:
            # Nothing may be awaited here: the task may be under cancellation.
            let_go(call)
            exchange.close()

    async def _stream(self, exchange: Exchange, form: Form, call: Call) -> None:
        log = self._resumables.new_log() if form.resume_s else None
        stream_id = _answer_id(exchange, form)
        reply = Reply(form, call, self._settings, stream_id=stream_id, created=exchange.created, log=log)

        async def answer(scope: anyio.CancelScope) -> None:
            # The status waits for the first event, so that what the worker refuses is a 4xx and not a 200; but a
            # client whose request has no worker is not left in silence.
            began = await reply.news()
            if began and call.failure is not None:
                await self._fail(exchange, call)
            else:
                await exchange.start_events(scope, stream_id if log is not None else "")
                await reply.send(exchange, began)

        if log is not None:
            reader = Reader(exchange)
            stream = self._resumables.keep(reply, log, exchange.key, form.resume_s, reader)
            await self._resumables.read(stream, reader, answer)
            return
        try:
            await exchange.attended(answer)
        finally:
            reply.close()
            exchange.close()

    async def _fail(self, exchange: Exchange, call: Call) -> None:
        if call.failure is not None:
            await exchange.respond_error(failure_error(call.failure, self._settings))


def _answer_id(exchange: Exchange, form: Form) -> str:
    return f"{'chatcmpl' if form.chat else 'cmpl'}-{exchange.token}"
