"""Gives decoded requests their images, before they are admitted."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import anyio
from msgspec import structs

from gateway.body_budget import HeldBody
from gateway.errors import RefusalCode, RequestError, invalid
from gateway.generation.prompt_query import PromptQuery
from gateway.generation.request import GenerationRequest
from gateway.http.exchange import ClientGone, HttpExchange
from gateway.images.loading import ImageLoader
from gateway.images.sources import GivenImage
from gateway.routing.router import Router
from gateway.streaming.key_limits import KeyGate
from protocol.bounds import MAX_FRAME_BYTES
from protocol.errors import ErrorCode
from protocol.request import ChatInput, EmbeddedInput, Image, Input, TextInput, TokensInput

MAX_INPUT_BYTES = MAX_FRAME_BYTES - 2 * 1024 * 1024
"""Bytes of a prompt with its images, as workers get it. The rest of a frame is for the tokens that a lost worker has
generated already, which another one gets."""
SMALL_BODY = MAX_INPUT_BYTES // 2
"""A body that is never more bytes as a prompt."""


class ImageInputs:
    """Loads the images of requests for all endpoints."""

    def __init__(self, router: Router, loader: ImageLoader) -> None:
        self._router = router
        self._loader = loader
        self._gate = KeyGate(router)

    async def request(
        self, exchange: HttpExchange, request: GenerationRequest, sources: Sequence[GivenImage], held: HeldBody
    ) -> GenerationRequest:
        """Return a request with its images. Raises `RequestError` and `ClientGone`."""
        inputs = {id(each.input): each.input for each in request.sequences}
        made = await self._inputs(exchange, request.model, inputs, sources, held)
        if not sources:
            return request
        # Sequences share inputs, which are then sent once.
        sequences = tuple(replace(each, input=made[id(each.input)]) for each in request.sequences)
        return replace(request, sequences=sequences)

    async def query(
        self, exchange: HttpExchange, query: PromptQuery, sources: Sequence[GivenImage], held: HeldBody
    ) -> PromptQuery:
        """Return a query with its images. Raises `RequestError` and `ClientGone`."""
        made = await self._inputs(exchange, query.model, {0: query.input}, sources, held)
        return replace(query, input=made[0]) if sources else query

    async def _inputs(
        self,
        exchange: HttpExchange,
        model: str,
        inputs: dict[int, Input],
        sources: Sequence[GivenImage],
        held: HeldBody,
    ) -> dict[int, Input]:
        images: tuple[Image, ...] = ()
        if sources:
            self._gate.check_model(exchange, model)
            self._check_model(model, sources[0])
            self._loader.check(sources)
            images = await self._load(exchange, sources, held)
            inputs = {
                key: structs.replace(each, images=images) if isinstance(each, ChatInput) else each
                for key, each in inputs.items()
            }
        if held.size > SMALL_BODY:
            _check_sizes(inputs.values(), sources, images, held)
        return inputs

    def _check_model(self, model: str, source: GivenImage) -> None:
        """Refuse images for a model that takes none, as far as its workers are known. Raises `RequestError`."""
        model = self._router.models.canonical(model)
        if not self._router.pool.has(model):
            raise self._router.models.no_model(model)
        known = self._router.models.capabilities(model)
        if known is not None and not known.images:
            advice = "`capabilities.vision` in /v1/models tells which do"
            text = f"`{source.field}`: model {model!r} takes no images; {advice}"
            raise invalid(source.field, text, ErrorCode.UNSUPPORTED)

    async def _load(self, exchange: HttpExchange, sources: Sequence[GivenImage], held: HeldBody) -> tuple[Image, ...]:
        if is_in_body(sources):
            return await self._loader.load(sources, exchange.client, held)
        loaded = _Loaded((), None)

        async def load(_: anyio.CancelScope) -> None:
            nonlocal loaded
            try:
                loaded = _Loaded(await self._loader.load(sources, exchange.client, held), None)
            except RequestError as error:  # a task group would wrap it
                loaded = _Loaded((), error)

        await exchange.while_connected(load)
        if loaded.error is not None:
            raise loaded.error
        if not loaded.images:
            raise ClientGone
        return loaded.images


class _Loaded(NamedTuple):
    images: tuple[Image, ...]
    error: RequestError | None


def _check_sizes(
    inputs: Iterable[Input], sources: Sequence[GivenImage], images: Sequence[Image], held: HeldBody
) -> None:
    """Refuse a prompt that may fit into no frame. Raises `RequestError`."""
    decoded = zip(sources, images, strict=True)
    saved = sum(len(one.text) - one.begin - len(made.data) for one, made in decoded if one.kind == "base64")
    for each in inputs:
        size = _wire_bytes(each, held.size - saved)
        if size > MAX_INPUT_BYTES:
            text = f"the prompt and its images take {size} bytes; {MAX_INPUT_BYTES} are the most"
            raise RequestError(RefusalCode.BODY_TOO_LARGE, text)


def _wire_bytes(source: Input, most: int) -> int:
    """Bound the bytes of a prompt on a link. In a body of JSON, and without base64, it has `most`."""
    match source:
        case TextInput():
            return len(source.text.encode(errors="surrogatepass"))
        case TokensInput():
            return 5 * len(source.tokens)
        case EmbeddedInput():
            return source.data_bytes
        case _:
            return most


def is_in_body(sources: Sequence[GivenImage]) -> bool:
    """Return whether the body has the images itself. What a URL leads to may change."""
    return all(each.kind == "base64" for each in sources)
