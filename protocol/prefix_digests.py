"""Digests of the beginnings of prompts, by which a worker reports what it holds and the gateway finds it.

The gateway has no tokenizer. So the digests are not of tokens but of the bytes of a request, in an order in which a
chat's next turn begins with the bytes of this one and its answer. Equal digests promise nothing: the worker compares
tokens.

Digests are keyed by the tenant, as prefixes are not shared between tenants: those of two tenants have nothing in
common, and a client cannot make those of another tenant.
"""

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from protocol.bounds import IMAGE_DIGEST_BYTES, MAX_PREFIX_DIGESTS
from protocol.request import (
    ChatInput,
    EmbeddedInput,
    Image,
    InfillInput,
    Input,
    Message,
    PairInput,
    TextInput,
    TokensInput,
)

FIRST_BYTES = 128
"""Length of the shortest prefix that has a digest, some 32 tokens of text."""
TOKEN_BYTES = 4
STEPS = 8
"""Digests for each doubling of the length: a prompt of a megabyte has 88, and what two prompts have in common is known
within an eighth."""


def _boundary(index: int) -> int:
    doublings, step = divmod(index, STEPS)
    if not doublings:
        return FIRST_BYTES * (step + 1)
    return (FIRST_BYTES << (doublings - 1)) * (STEPS + step + 1)


BOUNDARIES = tuple(_boundary(index) for index in range(MAX_PREFIX_DIGESTS))
"""The length in bytes of the prefix of each digest. The last one is longer than any frame."""

_ABOVE_TOKENS = bytes(byte | 0x80 for byte in range(256))
"""Bytes by the last byte of four, which make a number that is no token of them."""
_SEPARATOR = "\x1e"
_FIELD = "\x1f"
_IMAGE = "\x1d"
PIXELS_PER_TOKEN = 28 * 28
MAX_IMAGE_TOKENS = 1280


class PrefixDigests:
    """The digests of a growing text: one at each boundary that it has reached, each of 63 bits."""

    __slots__ = ("_digests", "_hash", "size")

    def __init__(self, tenant: str) -> None:
        self._hash = hashlib.blake2b(digest_size=8, key=hashlib.blake2b(tenant.encode()).digest())
        self._digests: list[int] = []
        self.size = 0
        """The length of the text in bytes."""

    @classmethod
    def of(cls, source: Input, tenant: str) -> "PrefixDigests":
        """Return the digests of a prompt, whose answer may be added."""
        digests = cls(tenant)
        if isinstance(source, TokensInput):
            digests.add_tokens(source.tokens)
        elif isinstance(source, EmbeddedInput):
            digests._add_segments(source)
        else:
            digests.add_text("".join(_texts(source)))
        return digests

    def add_text(self, text: str) -> None:
        """Add text."""
        self._add(text.encode(errors="surrogatepass"))

    def add_tokens(self, tokens: tuple[int, ...]) -> None:
        """Add token ids, four bytes each."""
        self._add(array("I", tokens).tobytes())

    def _add_segments(self, source: EmbeddedInput) -> None:
        """Add token ids, and as many bytes for each row of embeddings. No row has the bytes of a token."""
        for segment in source.segments:
            if isinstance(segment, TokensInput):
                self.add_tokens(segment.tokens)
            else:
                digest = bytearray(hashlib.shake_128(segment.data).digest(TOKEN_BYTES * segment.count))
                last = slice(TOKEN_BYTES - 1, None, TOKEN_BYTES)
                digest[last] = digest[last].translate(_ABOVE_TOKENS)
                self._add(digest)

    def digests(self, size: int | None = None) -> tuple[int, ...]:
        """Return the digests so far, or those of the first `size` bytes."""
        return tuple(self._digests if size is None else self._digests[: bisect_right(BOUNDARIES, size)])

    def _add(self, data: bytes | bytearray) -> None:
        view, at, known = memoryview(data), 0, self._digests
        while len(known) < MAX_PREFIX_DIGESTS and (missing := BOUNDARIES[len(known)] - self.size) <= len(view) - at:
            self._hash.update(view[at : at + missing])
            at += missing
            self.size += missing
            known.append(int.from_bytes(self._hash.copy().digest()) >> 1)
        self._hash.update(view[at:])
        self.size += len(view) - at


def answer_begins(source: Input) -> str:
    """Return what is between a prompt and the text of its answer in a prompt that goes on after both."""
    return f"{_SEPARATOR}assistant{_FIELD}" if isinstance(source, ChatInput) else ""


def _texts(source: TextInput | ChatInput | InfillInput | PairInput) -> Iterator[str]:
    match source:
        case TextInput(text):
            yield text
        case ChatInput():
            # Tools and options come first, as in the templates of most models.
            yield f"{source.tools_json}{_SEPARATOR}{source.options}"
            for message in source.messages:
                yield from _message_texts(message, source.images)
        case InfillInput(prefix, suffix):
            yield f"{prefix}{_SEPARATOR}{suffix}"
        case PairInput(first, second):
            yield f"{first}{_SEPARATOR}{second}"


def _message_texts(message: Message, images: Sequence[Image]) -> Iterator[str]:
    """Yield the texts of a message. Those that only some messages have come last, so that an answer of text alone has
    no more than its text."""
    yield f"{_SEPARATOR}{message.role}{_FIELD}"
    begin = 0
    for place in message.images:
        yield message.content[begin : place.at]
        yield _image_text(images[place.image]) if place.image < len(images) else _IMAGE
        begin = place.at
    yield message.content[begin:]
    if message.name or message.reasoning or message.tool_call_id:
        yield f"{_FIELD}{message.name}{_FIELD}{message.reasoning}{_FIELD}{message.tool_call_id}"
    for call in message.tool_calls:
        yield f"{_FIELD}{call.name}{_FIELD}{call.arguments}"


def _image_text(image: Image) -> str:
    """Return a text for an image, of its digest and detail, and about as long as that of as many tokens."""
    digest = image.digest or hashlib.blake2b(image.data, digest_size=IMAGE_DIGEST_BYTES).digest()
    tokens = image_tokens(image)
    return f"{_IMAGE}{image.detail}{hashlib.shake_128(digest).hexdigest(TOKEN_BYTES * tokens // 2)}"


def image_tokens(image: Image) -> int:
    """Estimate the tokens of an image, until a worker has counted them: one for 28 x 28 pixels, as in Qwen's models, up
    to `MAX_IMAGE_TOKENS`."""
    return min(MAX_IMAGE_TOKENS, max(8, image.width * image.height // PIXELS_PER_TOKEN))
