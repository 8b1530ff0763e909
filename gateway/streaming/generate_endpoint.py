"""The endpoint of generation requests in any dialect, on plain ASGI."""

import anyio
import structlog
from starlette.types import Receive, Scope, Send

from gateway.body_budget import HeldBody
from gateway.errors import INTERNAL_TEXT, RequestError
from gateway.http.conventions import HttpConventions
from gateway.http.exchange import ClientGone, HttpExchange
from gateway.routing.request_group import Call
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnswerHead, AnswerRenderer, Decode
from gateway.streaming.reply import Reply, failure_error, let_go
from gateway.streaming.resumable import Reader
from gateway.streaming.resume_endpoint import PickUp
from protocol.errors import ErrorCode

_log = structlog.get_logger("gateway.streaming.generate_endpoint")


class GenerateEndpoint:
    """Body in, tokens out. An ASGI app; every exchange ends with one answer, one error, or a client that left."""

    def __init__(
        self,
        router: Router,
        settings: GatewaySettings,
        decode: Decode,
        conventions: HttpConventions,
        pick_up: PickUp,
    ) -> None:
        self._router = router
        self._settings = settings
        self._decode = decode
        self._conventions = conventions
        self._pick_up = pick_up
        self._resumables = pick_up.streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send, self._settings, self._conventions)
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
        elif admitted[0].output.stream:
            await self._stream(exchange, *admitted)
        else:
            await self._whole(exchange, *admitted)

    def _admit(self, raw: bytes, body: HeldBody, exchange: HttpExchange) -> tuple[Call, AnswerRenderer] | None:
        """None for a client that repeats its request, as EventSource would: it wants the rest of the answer, not
        another one. Raises `RequestError`."""
        if exchange.last_event_id:
            return None
        request, renderer = self._decode(raw)
        if request.output.resume_s:
            self._resumables.check_room()
        return self._router.open(request, exchange.request_id, body, exchange.key), renderer

    async def _whole(self, exchange: HttpExchange, call: Call, renderer: AnswerRenderer) -> None:
        async def answer(_: anyio.CancelScope) -> None:
            await call.wait()
            if call.failure is not None:
                await exchange.respond_error(failure_error(call.failure, self._settings))
                return
            answer_id = renderer.answer_id(exchange.token)
            head = AnswerHead(answer_id, exchange.created, call.model, call.config_digest)
            body = renderer.whole(head, call.take(), call.token_counts(), continued=call.continued)
            await exchange.respond(200, body)

        try:
            await exchange.attended(answer)
        finally:
            # Nothing may be awaited here: the task may be under cancellation.
            let_go(call)
            exchange.close()

    async def _stream(self, exchange: HttpExchange, call: Call, renderer: AnswerRenderer) -> None:
        resume_s = call.output.resume_s
        log = self._resumables.new_log() if resume_s else None
        reply = Reply(call, renderer, exchange, self._settings, log)

        async def answer(scope: anyio.CancelScope) -> None:
            # The status waits for the first event, so that what the worker refuses is a 4xx and not a 200; but a
            # client whose request has no worker is not left in silence.
            began = await reply.news()
            if began and call.failure is not None:
                await exchange.respond_error(failure_error(call.failure, self._settings))
            else:
                await exchange.start_events(scope, renderer.content_type, reply.id if log is not None else "")
                await reply.send(exchange, began)

        if log is not None:
            reader = Reader(exchange)
            stream = self._resumables.keep(reply, log, exchange.key, resume_s, reader)
            await self._resumables.read(stream, reader, answer)
            return
        try:
            await exchange.attended(answer)
        finally:
            reply.close()
            exchange.close()
