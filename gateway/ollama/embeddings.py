"""`/api/embed` and the older `/api/embeddings`: vectors of texts, in Ollama's format."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta, Struct

from gateway.generation.delta import OutputDelta, TokenCounts
from gateway.generation.field_names import FieldNames
from gateway.generation.pooled.texts import input_names, pooled_request
from gateway.generation.pooled.vectors import numbers, vectors
from gateway.http.json_body import decode_body
from gateway.ollama.answer import NDJSON
from gateway.ollama.decoding import model_named
from gateway.ollama.residence import ModelResidence, keep_alive_s
from gateway.ollama.schema import ModelOptions
from gateway.ollama.unsupported import refuse_unsupported
from gateway.routing.router import Router
from gateway.settings import GatewaySettings
from gateway.streaming.dialect import AnswerHead, Decoded
from protocol.bounds import MAX_VECTOR_WIDTH, Name, Text
from protocol.request import Pooled, TextInput

_encode = msgspec.json.Encoder().encode
EMBED = FieldNames({"prompt": "input", "messages": "input", "dimensions": "dimensions"})
"""The names of fields in errors."""
EMBEDDINGS = FieldNames({"prompt": "prompt", "messages": "prompt"})


class OllamaEmbedBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /api/embed`. A text that is too long is truncated, unless `truncate` is false."""

    model: Name
    input: Text | Annotated[tuple[Text, ...], Meta(min_length=1)]
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=0, le=MAX_VECTOR_WIDTH)] | None = None
    options: ModelOptions | None = None
    keep_alive: Any = None


class OllamaEmbeddingsBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """`POST /api/embeddings`: one text, whose vector is not normalized."""

    model: Name
    prompt: Text
    options: ModelOptions | None = None
    keep_alive: Any = None


class OllamaEmbedAnswer(Struct, forbid_unknown_fields=True):
    """The answer of `/api/embed`. Durations are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsAnswer(Struct, forbid_unknown_fields=True):
    """The answer of `/api/embeddings`."""

    embedding: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaVectors:
    """Implements `gateway.streaming.dialect.AnswerRenderer` for both endpoints."""

    model: str
    """The name that the client gave the model."""
    single: bool
    """The answer is that of the older endpoint."""
    began: int = field(default_factory=time.monotonic_ns)
    content_type = NDJSON
    keep_alive = b""

    def answer_id(self, token: str) -> str:
        return f"ollama-{token}"

    def events(self, head: AnswerHead) -> NoReturn:
        """Raises `TypeError`: no field of a body asks for a stream."""
        raise TypeError("embeddings are not streamed")

    def whole(
        self, head: AnswerHead, deltas: Sequence[OutputDelta], counts: TokenCounts, *, continued: bool
    ) -> Iterator[bytes]:
        found = vectors(deltas)
        if self.single:
            yield _encode({"embedding": numbers(found[0])})
            return
        yield _encode({"model": self.model})[:-1] + b',"embeddings":['
        for place, index in enumerate(sorted(found)):
            yield (b"," if place else b"") + _encode(numbers(found[index]))
        end = {
            "total_duration": time.monotonic_ns() - self.began,
            "load_duration": 0,
            "prompt_eval_count": counts.prompt,
        }
        yield b"]," + _encode(end)[1:]


class OllamaEmbeddings:
    """Decodes the bodies of the two endpoints. Every refusal is a `RequestError` that names its field."""

    def __init__(self, router: Router, settings: GatewaySettings, residence: ModelResidence) -> None:
        self._router = router
        self._settings = settings
        self._residence = residence
        self._embed = msgspec.json.Decoder(OllamaEmbedBody)
        self._embeddings = msgspec.json.Decoder(OllamaEmbeddingsBody)

    def embed(self, raw: bytes) -> Decoded:
        """Decode a body of `/api/embed`."""
        body = decode_body(self._embed, raw)
        texts = [body.input] if isinstance(body.input, str) else list(body.input)
        names = input_names("input", len(texts), several=not isinstance(body.input, str))
        truncate = None if body.truncate is False else 0
        pooled = Pooled(dimensions=body.dimensions or 0, normalize=True, truncate=truncate)
        return self._decoded(body, texts, names, pooled, EMBED, len(raw))

    def embeddings(self, raw: bytes) -> Decoded:
        """Decode a body of `/api/embeddings`."""
        body = decode_body(self._embeddings, raw)
        pooled = Pooled(normalize=False, truncate=0)
        return self._decoded(body, [body.prompt], ("prompt",), pooled, EMBEDDINGS, len(raw))

    def _decoded(
        self,
        body: OllamaEmbedBody | OllamaEmbeddingsBody,
        texts: Sequence[str],
        names: tuple[str, ...],
        pooled: Pooled,
        fields: FieldNames,
        size: int,
    ) -> Decoded:
        if body.options is not None:
            refuse_unsupported(body.options, "options.")
        model, keep_s = model_named(self._router, body.model), keep_alive_s(body.keep_alive)
        inputs = [TextInput(text) for text in texts]
        request = pooled_request(
            self._settings, size, model=model, inputs=inputs, names=names, pooled=pooled, fields=fields
        )
        single = isinstance(body, OllamaEmbeddingsBody)
        admitted = None if keep_s is None else partial(self._residence.keep, model, keep_s)
        return Decoded(request, OllamaVectors(model=body.model, single=single), admitted=admitted)
