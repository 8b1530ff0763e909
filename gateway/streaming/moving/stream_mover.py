"""Moves streams between gateways: records those of this one, and takes over those of others that are gone."""

from collections.abc import Mapping
from dataclasses import dataclass

import anyio
import msgspec
import structlog

from gateway.body_budget import HeldBody
from gateway.errors import RefusalCode, RequestError, invalid
from gateway.generation.request import GenerationRequest
from gateway.generation.tenant import tenant_of
from gateway.http.conventions import HttpConventions
from gateway.http.exchange import HttpExchange
from gateway.routing.admission.time_limits import RequestTimeLimits
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import Decoded, StatefulDecode
from gateway.streaming.image_inputs import ImageInputs
from gateway.streaming.key_limits import KeyGate
from gateway.streaming.moving.event_position import EventPosition
from gateway.streaming.moving.output_positions import OutputPositions
from gateway.streaming.moving.record_store import HeldElsewhere, RecordStore, RecordsUnreachable, RecordUnknown
from gateway.streaming.moving.stream_record import StreamRecord, decode_record, is_portable, template_now
from gateway.streaming.reply import ReplyOrigin, StreamedReply
from gateway.streaming.resumable import Reader, ResumableStream, ResumableStreams, UnknownStream
from gateway.streaming.sse import is_sse
from protocol.errors import ErrorCode

RETRY_S = 1
"""The `Retry-After` while another gateway has the stream."""

_log = structlog.get_logger("gateway.streaming.moving.stream_mover")


@dataclass(frozen=True, slots=True)
class RecordedPath:
    """The dialect of a path to which requests of streams are sent."""

    decode: StatefulDecode
    conventions: HttpConventions


class StreamMover:
    """Records requests, and answers for streams that this gateway does not have."""

    def __init__(
        self,
        router: Router,
        settings: GatewaySettings,
        streams: ResumableStreams,
        records: RecordStore,
        paths: Mapping[str, RecordedPath],
        images: ImageInputs,
    ) -> None:
        self._images = images
        self._router = router
        self._settings = settings
        self._streams = streams
        self._records = records
        self._paths = paths
        self._gate = KeyGate(router)
        self._opening: set[str] = set()
        """Streams that are being taken over."""

    def record(self, exchange: HttpExchange, raw: bytes, decoded: Decoded, group: RequestGroup) -> bool:
        """Record the request of a stream, which was admitted. False if no other gateway can compute it from its body,
        or there is no room."""
        request, renderer = decoded.request, decoded.renderer
        if not (decoded.portable and is_sse(renderer.content_type) and is_portable(request, raw)):
            return False
        limits = RequestTimeLimits.of(exchange.header, self._settings)
        record = StreamRecord(
            exchange.path,
            raw,
            exchange.token,
            exchange.created,
            tuple(each.sampling.seed for each in request.sequences),
            template_now(request),
            group.call_key,
            limits.total_s,
            self._router.models.adapter_digest(group.model, group.sequences[0].submit.adapter),
            request.model,
        )
        stream_id, owner = renderer.answer_id(exchange.token), _owner(exchange)
        return self._records.keep(stream_id, owner, record.encoded(), request.output.resume_s)

    async def cancel(self, exchange: HttpExchange, stream_id: str) -> None:
        """Respond to a request to cancel a stream. Raises `UnknownStream` and `StreamUnreachable`."""
        try:
            await self._records.cancel(stream_id, _owner(exchange))
        except RecordUnknown:
            raise UnknownStream from None
        except RecordsUnreachable as error:
            raise StreamUnreachable(error) from error
        await exchange.respond_empty()

    async def resume(
        self, exchange: HttpExchange, stream_id: str, position: EventPosition, field: str, *, ask: bool
    ) -> None:
        """Take a stream over, and respond with what follows the `position`, which request field `field` has. With `ask`
        a gateway that has it is asked for it. Raises `UnknownStream`, `StreamElsewhere`, `StreamUnreachable` and
        other `RequestError`s, before anything is sent."""
        if position.last:
            await exchange.respond_empty()
            return
        if stream_id in self._opening:
            raise StreamElsewhere
        self._opening.add(stream_id)
        try:
            stream, reader = await self._taken_over(exchange, stream_id, position, field, ask=ask)
        finally:
            self._opening.discard(stream_id)
        reply = stream.reply

        async def send(scope: anyio.CancelScope) -> None:
            await exchange.start_events(scope, reply.content_type, stream_id, anywhere=True)
            await reply.send(exchange, began=False)

        await self._streams.read(stream, reader, send)

    async def _taken_over(
        self, exchange: HttpExchange, stream_id: str, position: EventPosition, field: str, *, ask: bool
    ) -> tuple[ResumableStream, Reader]:
        self._streams.check_room(exchange.client)
        try:
            encoded = await self._records.claim(stream_id, _owner(exchange), ask=ask)
        except RecordUnknown:
            raise UnknownStream from None
        except HeldElsewhere:
            raise StreamElsewhere from None
        except RecordsUnreachable as error:
            raise StreamUnreachable(error) from error
        try:
            return await self._open(exchange, decode_record(encoded), position, field)
        except msgspec.DecodeError:  # of another version, or not ours
            self._records.release(stream_id)
            raise UnknownStream from None
        except BaseException:  # also a cancellation: another gateway may have it then
            self._records.release(stream_id)
            raise

    async def _open(
        self, exchange: HttpExchange, record: StreamRecord, position: EventPosition, field: str
    ) -> tuple[ResumableStream, Reader]:
        """Admit the request of a record, as far as it is new to the client. Raises `RequestError`."""
        _check(position, len(record.seeds), field)
        found = self._paths.get(record.path)
        if found is None:
            raise UnknownStream  # of a version with other paths
        body = HeldBody(self._router.bodies)
        try:
            body.grow(len(record.body))
            decoded = await found.decode(record.body, body, exchange.key)
            if not isinstance(decoded, Decoded):
                raise UnknownStream
            if not decoded.request.model:
                decoded = decoded.of_model(record.model)
            loaded = await self._images.request(exchange, decoded.request, decoded.images, body)
            request = record.pinned(loaded)
            if request is None:
                raise UnknownStream
            await self._check_adapter(record.adapter, request)
            self._streams.check_room(exchange.client)
            total_s = min(record.total_s, self._settings.request_timeout_s)
            group = self._gate.open(exchange, request, body, RequestTimeLimits(total_s, 0.0))
        finally:
            body.release()
        exchange.record.admitted = True
        exchange.conventions = found.conventions
        group.call_key = record.call_key
        log = self._streams.new_log(position.number)
        reply = StreamedReply(
            group,
            decoded.renderer,
            exchange,
            self._settings,
            log,
            decoded.keep,
            OutputPositions(len(request.sequences), position),
            ReplyOrigin(record.token, record.created, position.number),
        )
        reader = Reader(exchange)
        stream = self._streams.keep(reply, log, request.output.resume_s, reader, known=True)
        _log.info("stream_taken_over", request=group.request_id, stream=reply.id)
        return stream, reader

    async def _check_adapter(self, recorded: str, request: GenerationRequest) -> None:
        """Refuse a stream whose adapter has other weights here, which would continue it with other tokens. Raises
        `RequestError`."""
        router = self._router
        if recorded:  # the digest of adapters that are loaded with a model is known from a worker on
            await router.admission.described(request.model)
        here = router.models.resolved(request)
        if router.models.adapter_digest(here.model, router.models.on_workers(here.adapter)) != recorded:
            text = f"the adapter {request.model!r} has other weights here than at the gateway that had the stream"
            raise RequestError(RefusalCode.EVENTS_GONE, text, field="model")


class StreamElsewhere(RequestError):
    """Raised for a stream that another gateway has, which is asked to give it up."""

    def __init__(self) -> None:
        text = "another gateway has the stream, and was asked for it: try again"
        super().__init__(RefusalCode.STREAM_ELSEWHERE, text, field="id", retry_after_s=RETRY_S)


class StreamUnreachable(RequestError):
    """Raised for a stream that this gateway does not have, and of which it cannot learn who has it."""

    def __init__(self, error: RecordsUnreachable) -> None:
        text = f"this gateway does not have the stream, and cannot ask for it: {error}"
        super().__init__(ErrorCode.UNAVAILABLE, text, retry_after_s=RETRY_S)


def _owner(exchange: HttpExchange) -> str:
    """The digest of the client's API key."""
    return tenant_of(exchange.key, "")


def _check(position: EventPosition, sequences: int, field: str) -> None:
    """Raise `RequestError` for a position from which no gateway but the first one can continue."""
    if position.number and not position.sequences:
        text = (
            f"the gateway that had the stream is gone; another one continues after the whole id of an event (`{field}`)"
        )
        raise RequestError(RefusalCode.EVENTS_GONE, text, field=field)
    if position.sequences and len(position.sequences) != sequences:
        raise invalid(field, f"`{field}` is not the id of an event of this stream")
