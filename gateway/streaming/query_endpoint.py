"""The endpoint of queries for the tokens or the text of a prompt, in any dialect, on plain ASGI."""

from dataclasses import replace

import anyio
import anyio.lowlevel
from starlette.types import Receive, Scope, Send

from gateway.body_budget import HeldBody
from gateway.errors import INTERNAL_TEXT, RequestError
from gateway.http.body_values import check_values
from gateway.http.conventions import HttpConventions
from gateway.http.exchange import ClientGone, HttpExchange
from gateway.images.loading import ImageLoader
from gateway.keys.account import Reservation
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import DecodeQuery
from gateway.streaming.image_inputs import ImageInputs
from gateway.streaming.key_limits import KeyGate
from protocol.errors import ErrorCode


class QueryEndpoint:
    """Serves queries on one path. An ASGI app."""

    def __init__(
        self,
        router: Router,
        settings: GatewaySettings,
        decode: DecodeQuery,
        conventions: HttpConventions,
        images: ImageInputs | None = None,
    ) -> None:
        """`images` loads those of queries; by default, from their bodies alone."""
        self._images = images or ImageInputs(router, ImageLoader(settings))
        self._router = router
        self._settings = settings
        self._decode = decode
        self._conventions = conventions
        self._gate = KeyGate(router)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send, self._settings, self._conventions)
        body = HeldBody(self._router.bodies)
        reservation: Reservation | None = None
        try:
            self._gate.check(exchange)
            raw = await exchange.body(body)
            await check_values(raw, self._settings.max_body_values)
            query, render, images = self._decode(raw)
            if not query.model:
                query = replace(query, model=self._gate.only_model(exchange))
            reservation = self._gate.admit_query(exchange, query.model)
            query = await self._images.query(exchange, query, images, body)
            await anyio.lowlevel.checkpoint()  # a large body takes as long to decode as to send

            async def answer(_: anyio.CancelScope) -> None:
                try:
                    answer = await self._router.admission.ask(query, exchange.request_id)
                except RequestError as error:
                    await exchange.respond_error(error)
                else:
                    await exchange.respond(
                        200, render(answer, self._router.pool.context(self._router.models.canonical(query.model)))
                    )

            await exchange.while_connected(answer)
        except RequestError as error:
            await exchange.refuse(error)
        except ClientGone:
            return
        except Exception:
            await exchange.refuse(RequestError(ErrorCode.INTERNAL, INTERNAL_TEXT))
            raise
        finally:
            body.release()
            if reservation is not None:
                reservation.settle()
            exchange.close()
