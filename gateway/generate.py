"""The endpoint behind both `/v1/completions` and `/v1/chat/completions`, on plain ASGI."""

from collections.abc import Callable

import anyio
import structlog
from starlette.types import Receive, Scope, Send

from gateway.answers import whole_answer
from gateway.errors import ApiError, from_code
from gateway.exchange import ClientGone, Exchange
from gateway.requests import Plan
from gateway.router import Router
from gateway.settings import GatewaySettings
from gateway.sse import DONE, WAITING, EventWriter, error_event
from gateway.streams import Call, Failure
from protocol.errors import ErrorCode

DEFECT = "the gateway failed"
"""All that a client is told of a defect; the log has the rest."""

_log = structlog.get_logger("gateway.generate")


class Generate:
    """Body in, tokens out. An ASGI app; every exchange ends with one answer, one error, or a client that left."""

    def __init__(self, router: Router, settings: GatewaySettings, decode: Callable[[bytes], Plan]) -> None:
        self._router = router
        self._settings = settings
        self._decode = decode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._settings)
        try:
            plan = self._decode(await exchange.body())
            call = self._router.open(plan, exchange.request_id)
        except ApiError as error:
            _log.info("request_refused", request=exchange.request_id, status=error.status, code=error.code)
            await exchange.refuse(error)
            return
        except ClientGone:
            return
        except Exception:
            await exchange.refuse(from_code(ErrorCode.INTERNAL, DEFECT))
            raise
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(exchange.until_gone, group.cancel_scope)
                await self._answer(exchange, plan, call, group.cancel_scope)
                group.cancel_scope.cancel()
        finally:
            # Nothing may be awaited here: the task may be under cancellation.
            outcome = (
                "client_gone" if not call.ended else "answered" if call.failure is None else call.failure.code.value
            )
            call.cancel_nowait()
            exchange.close()
            _log.info("request_ended", request=call.request, worker=call.worker, model=call.model, outcome=outcome)

    async def _answer(self, exchange: Exchange, plan: Plan, call: Call, scope: anyio.CancelScope) -> None:
        answer_id = f"{'chatcmpl' if plan.chat else 'cmpl'}-{exchange.token}"
        # The status waits for the first event, so that what the worker refuses is a 4xx and not a 200; but a client
        # whose request has no worker is not left in silence.
        began = await (self._news(call) if plan.stream else call.wait())
        if began and call.failure is not None:
            error = self._error(call.failure)
            await exchange.respond(error.status, error.body(), error.headers)
        elif plan.stream:
            await exchange.start_events(scope)
            try:
                if not began:
                    await self._wait(exchange, call)
                await self._stream(exchange, plan, call, answer_id)
            except Exception:
                # A defect of ours, after the 200: the client still gets a typed end, and the server logs it.
                await exchange.events(error_event(from_code(ErrorCode.INTERNAL, DEFECT)) + DONE, more=False)
                raise
        else:
            await exchange.respond(200, whole_answer(plan, call, answer_id, exchange.created))

    async def _news(self, call: Call) -> bool:
        """Wait for something to send. False when none came for a while, because there is no worker."""
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

    async def _wait(self, exchange: Exchange, call: Call) -> None:
        """Comment on the wait until there is something to send."""
        await exchange.events(WAITING)
        while not await self._news(call):
            await exchange.events(WAITING)

    async def _stream(self, exchange: Exchange, plan: Plan, call: Call, answer_id: str) -> None:
        writer = EventWriter(
            chat=plan.chat,
            answer_id=answer_id,
            created=exchange.created,
            model=call.model,
            fingerprint=call.fingerprint,
            include_usage=plan.include_usage,
            return_token_ids=plan.return_token_ids,
            logprobs=plan.logprobs,
        )
        while True:
            # Read before taking: what comes after this look is in the next round.
            ended = call.ended
            chunk = writer.pieces(call.take(plan.by_token))
            if ended:
                break
            if chunk:
                await exchange.events(chunk)
            if not await self._news(call):
                await self._wait(exchange, call)
        if call.failure is not None:
            chunk += error_event(self._error(call.failure))
        elif plan.include_usage:
            chunk += writer.usage(*call.usage(plan.per_prompt), continued=call.continued)
        await exchange.events(chunk + DONE, more=False)

    def _error(self, failure: Failure) -> ApiError:
        if failure.code is ErrorCode.INTERNAL:
            _log.error("internal_failure", text=failure.text)
        return from_code(failure.code, failure.text, param=failure.field, retry_after_s=self._settings.retry_after_s)
