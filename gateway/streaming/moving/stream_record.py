"""Records of the requests of streams: what another gateway needs to compute the same answer."""

from dataclasses import replace

from msgspec import Struct, msgpack, structs

from gateway.generation.request import GenerationRequest, SequenceRequest
from protocol.request import ChatInput

MAX_BODY_BYTES = 256 * 1024
"""Bytes of a body that is recorded; streams of larger ones end with their gateway."""
MAX_SEQUENCES = 16
"""Sequences of a stream that is recorded: each is 20 bytes of every event's id."""


class StreamRecord(Struct, frozen=True):
    """The request of one stream: its body, and what was decided when it came."""

    path: str
    body: bytes
    token: str
    """The token of the answer's id."""
    created: int
    seeds: tuple[int, ...]
    """The seeds of its sequences."""
    now: int
    """The time that chat templates get."""
    call_key: str
    """See `gateway.routing.live_request.LiveRequest`."""
    total_s: float
    """The time limit of the request, which begins anew at another gateway."""
    adapter: str = ""
    """Its adapter: see `gateway.routing.named_models.NamedModels.adapter_digest`."""
    model: str = ""
    """The model that it named, or that was the only one when it came."""

    def encoded(self) -> bytes:
        """The record as bytes."""
        return msgpack.encode(self)

    def pinned(self, request: GenerationRequest) -> GenerationRequest | None:
        """The request of the body, with what was decided when it first came. None if it has another number of
        sequences."""
        if len(request.sequences) != len(self.seeds):
            return None
        pairs = zip(request.sequences, self.seeds, strict=True)
        return replace(request, sequences=tuple(self._pinned(each, seed) for each, seed in pairs))

    def _pinned(self, sequence: SequenceRequest, seed: int) -> SequenceRequest:
        given = sequence.input
        return replace(
            sequence,
            input=structs.replace(given, now=self.now) if isinstance(given, ChatInput) else given,
            sampling=structs.replace(sequence.sampling, seed=seed),
        )


decode_record = msgpack.Decoder(StreamRecord).decode


def template_now(request: GenerationRequest) -> int:
    """The time that the chat templates of a request get; 0 without any."""
    return next((each.input.now for each in request.sequences if isinstance(each.input, ChatInput)), 0)


def is_portable(request: GenerationRequest, body: bytes) -> bool:
    """Return whether another gateway can compute the stream from its body."""
    return (
        len(body) <= MAX_BODY_BYTES
        and len(request.sequences) <= MAX_SEQUENCES
        and not any(each.echo or each.prompt_logprobs is not None for each in request.sequences)
    )
