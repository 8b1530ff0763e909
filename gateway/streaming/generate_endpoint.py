"""The endpoint of generation requests in any dialect, on plain ASGI."""

from collections.abc import Iterable, Iterator
from itertools import chain

import anyio
import anyio.lowlevel
from starlette.types import Receive, Scope, Send

from gateway.body_budget import HeldBody
from gateway.errors import INTERNAL_TEXT, ModelRequired, RequestError
from gateway.generation.broken_calls import without_broken_calls
from gateway.http.body_values import check_values
from gateway.http.conventions import HttpConventions
from gateway.http.exchange import ClientGone, HttpExchange
from gateway.images.loading import ImageLoader
from gateway.keys.account import Reservation
from gateway.routing.admission.time_limits import RequestTimeLimits
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.described_models import DescribedModels
from gateway.streaming.dialect import AnsweredAtOnce, AnswerHead, Decode, Decoded, Keep, StatefulDecode
from gateway.streaming.image_inputs import ImageInputs, is_in_body
from gateway.streaming.key_limits import KeyGate
from gateway.streaming.moving.output_positions import OutputPositions
from gateway.streaming.pieces import joined
from gateway.streaming.reply import StreamedReply, failure_error
from gateway.streaming.request_end import close_request
from gateway.streaming.resumable import Reader
from gateway.streaming.resume_endpoint import ResumeEndpoint
from protocol.errors import ErrorCode


class GenerateEndpoint:
    """Serves generation requests on one path. An ASGI app; every exchange ends with one answer, with one error, or when
    the client leaves."""

    def __init__(
        self,
        router: Router,
        settings: GatewaySettings,
        decode: StatefulDecode,
        conventions: HttpConventions,
        resume: ResumeEndpoint,
        images: ImageInputs | None = None,
    ) -> None:
        """`images` loads those of requests; by default, from their bodies alone."""
        self._images = images or ImageInputs(router, ImageLoader(settings))
        self._router = router
        self._settings = settings
        self._decode = decode
        self._conventions = conventions
        self._resume = resume
        self._resumables = resume.streams
        self._gate = KeyGate(router)
        self._models = DescribedModels(router)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send, self._settings, self._conventions)
        body = HeldBody(self._router.bodies)
        try:
            if not exchange.last_event_id:
                self._gate.check(exchange)
            admitted = await self._admit(body, exchange)
        except RequestError as error:
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
            await self._resume.respond(exchange)
            return
        if isinstance(admitted, AnsweredAtOnce):
            await self._at_once(exchange, admitted)
            return
        group, decoded, positions = admitted
        if decoded.respond is not None:
            await decoded.respond(exchange, group)
        elif group.output.stream:
            await self._stream(exchange, group, decoded, positions)
        else:
            await self._whole(exchange, group, decoded)

    async def _admit(
        self, body: HeldBody, exchange: HttpExchange
    ) -> tuple[RequestGroup, Decoded, OutputPositions | None] | AnsweredAtOnce | None:
        """Read and admit a request. With positions another gateway can continue its stream. None for a client that
        repeats its request with a `Last-Event-ID`, as EventSource would: it resumes its stream. Raises `RequestError`
        and `ClientGone`."""
        raw = await exchange.body(body)  # freed when it is admitted
        await check_values(raw, self._settings.max_body_values)
        if exchange.last_event_id:
            return None
        try:
            decoded = await self._decode(raw, body, exchange.key)
        except ModelRequired as error:
            self._gate.only_model(exchange)
            raise error
        if isinstance(decoded, AnsweredAtOnce):
            self._gate.check_model(exchange, decoded.model)  # first: the other error names all models
            if decoded.model not in self._router.models.names():
                raise self._router.models.no_model(decoded.model)
            return decoded
        if not decoded.request.model:
            decoded = decoded.of_model(self._gate.only_model(exchange))
        if decoded.once_loaded is not None:
            decoded = await self._models.described(exchange, decoded.request.model, decoded.once_loaded)
        if decoded.request.output.resume_s:
            self._resumables.check_room(exchange.client)
        request = await self._images.request(exchange, decoded.request, decoded.images, body)
        # Nothing refers to the body's own text of images from here on.
        decoded = decoded._replace(request=request, images=(), portable=decoded.portable and is_in_body(decoded.images))
        limits = RequestTimeLimits.of(exchange.header, self._settings)
        group = self._gate.open(exchange, request, body, limits)
        exchange.record.admitted = True
        if decoded.admitted is not None:
            decoded.admitted()
        mover = self._resume.mover
        recorded = mover is not None and request.output.resume_s and mover.record(exchange, raw, decoded, group)
        return group, decoded, OutputPositions(len(request.sequences)) if recorded else None

    async def _at_once(self, exchange: HttpExchange, answered: AnsweredAtOnce) -> None:
        async def answer(_: anyio.CancelScope) -> None:
            try:
                if answered.first is not None:
                    await answered.first()
            except RequestError as error:
                await exchange.respond_error(error)
            else:
                await exchange.respond(200, answered.body)

        reservation: Reservation | None = None
        try:
            reservation = self._gate.admit_query(exchange, answered.model)
            await exchange.while_connected(answer)
        except RequestError as error:
            await exchange.refuse(error)
        finally:
            if reservation is not None:
                reservation.settle()
            exchange.close()

    async def _whole(self, exchange: HttpExchange, group: RequestGroup, decoded: Decoded) -> None:
        renderer = decoded.renderer

        async def answer(scope: anyio.CancelScope) -> None:
            await group.wait()
            if group.failure is not None:
                await exchange.respond_error(failure_error(group.failure, group.output.fields, self._settings))
                return
            group.on_give_way = scope.cancel
            answer_id = renderer.answer_id(exchange.token)
            head = AnswerHead(answer_id, exchange.created, group.named, group.config_digest)
            try:
                deltas = without_broken_calls(group.take_all())
                if decoded.prepare is not None:
                    await decoded.prepare(deltas)
                parts = renderer.whole(head, deltas, group.token_counts(), continued=group.continued)
                pieces = joined(parts) if decoded.keep is None else await _kept(parts, decoded.keep)
                begin, more = next(pieces), next(pieces, None)
            except RequestError as error:
                await exchange.respond_error(error)
                return
            except Exception:
                # The server logs the exception.
                await exchange.respond_error(RequestError(ErrorCode.INTERNAL, INTERNAL_TEXT))
                raise
            if more is None:
                await exchange.respond(200, begin)
            else:
                await exchange.respond_in_pieces(200, chain((begin, more), pieces))

        try:
            await exchange.while_connected(answer)
        finally:
            # Nothing may be awaited here: the task may be under cancellation.
            close_request(group, exchange.record)
            exchange.close()

    async def _stream(
        self, exchange: HttpExchange, group: RequestGroup, decoded: Decoded, positions: OutputPositions | None
    ) -> None:
        renderer, resume_s = decoded.renderer, group.output.resume_s
        log = self._resumables.new_log() if resume_s else None
        reply = StreamedReply(group, renderer, exchange, self._settings, log, decoded.keep, positions)

        async def answer(scope: anyio.CancelScope) -> None:
            # The status waits for the first event, so that a refusal by the worker is a 4xx and not a 200. A client
            # whose request has no worker gets the status and comments instead.
            began = await reply.news()
            if began and group.failure is not None:
                await exchange.respond_error(failure_error(group.failure, group.output.fields, self._settings))
            else:
                stream_id = reply.id if log is not None else ""
                anywhere = positions is not None and self._resumables.is_anywhere(stream_id)
                await exchange.start_events(scope, renderer.content_type, stream_id, anywhere=anywhere)
                await reply.send(exchange, began)

        if log is not None:
            reader = Reader(exchange)
            stream = self._resumables.keep(reply, log, resume_s, reader)
            await self._resumables.read(stream, reader, answer)
            return
        try:
            await exchange.while_connected(answer)
        finally:
            reply.close()
            exchange.close()


def stateless(decode: Decode) -> StatefulDecode:
    """A function that decodes a body by itself, as `GenerateEndpoint` calls it."""

    async def decode_body(raw: bytes, body: HeldBody, key: bytes) -> Decoded | AnsweredAtOnce:
        return decode(raw)

    return decode_body


async def _kept(parts: Iterable[bytes], keep: Keep) -> Iterator[bytes]:
    """The pieces of a whole answer, once it is kept."""
    pieces = []
    for piece in joined(parts):
        pieces.append(piece)
        await anyio.lowlevel.checkpoint()
    await keep()
    return iter(pieces)
