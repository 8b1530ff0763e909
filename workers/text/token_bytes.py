"""Bytes of each token, from the decoder that tokenizer.json describes.

The `tokenizers` library decodes whole sequences only; used token by token, it repeats work over a window and guesses at
incomplete characters. The kinds of decoder that the served models use define the bytes of each token: byte-level BPE
(GPT-2, Llama 3, Qwen, Mistral Nemo), SentencePiece with byte fallback (Llama 2, Mistral), and WordPiece (BERT), whose
words have a space before them, those of punctuation included. Any other decoder is refused with an error that names it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class DecoderRefused(Exception):
    """Raised for a decoder with an unsupported part. The text names the part."""


@dataclass(slots=True)
class _Steps:
    """Steps of the decoder for one token, collected from its parts."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: list[tuple[str, str]] = field(default_factory=list)
    strip: str = ""
    """A character that is removed from the start of a text."""
    drop_first: str = ""
    """A character that is removed from the first token, wherever it occurs."""
    continues: str = ""
    """The beginning of a token that continues a word; others begin one, with a space before it."""


def _byte_of_character() -> Mapping[str, int]:
    """Return the inverse of GPT-2's table of printable characters for bytes (github.com/openai/gpt-2, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


class TokenBytes:
    """Bytes by token id, computed on first use."""

    def __init__(
        self, decoder: Mapping[str, Any] | None, token_of: Callable[[int], str | None], silent: frozenset[str]
    ) -> None:
        """`decoder` is the object of that name in tokenizer.json; `silent` are the special tokens, which have no text.

        Raises `DecoderRefused`.
        """
        self._steps = _read(decoder)
        self._token_of = token_of
        self._silent = silent
        self._bytes = _byte_of_character()
        self._known: dict[int, bytes] = {}

    def piece(self, token: int, *, first: bool = False) -> bytes:
        """See `workers.text.tokenizer.Tokenizer.piece`."""
        if first:
            return self._compute(token, first=True)
        known = self._known.get(token)
        if known is None:
            known = self._compute(token, first=False)
            if known:  # clients may send any number of unknown ids
                self._known[token] = known
        return known

    def _compute(self, token: int, *, first: bool) -> bytes:
        text = self._token_of(token)
        if text is None or text in self._silent:
            return b""
        if self._steps.byte_level:
            try:
                return bytes([self._bytes[character] for character in text])
            except KeyError:
                return text.encode("utf-8", "replace")
        return self._sentencepiece(text, first=first)

    def _sentencepiece(self, text: str, *, first: bool) -> bytes:
        steps = self._steps
        if steps.continues:
            inside = text.startswith(steps.continues)
            return (text.removeprefix(steps.continues) if inside or first else f" {text}").encode("utf-8", "replace")
        if first and steps.drop_first:
            text = text.replace(steps.drop_first, "")
        for old, new in steps.replacements:
            text = text.replace(old, new)
        match = _BYTE_TOKEN.fullmatch(text) if steps.byte_fallback else None
        piece = bytes((int(match[1], 16),)) if match else text.encode("utf-8", "replace")
        return piece.removeprefix(steps.strip.encode()) if first else piece


def _read(decoder: Mapping[str, Any] | None) -> _Steps:
    if not isinstance(decoder, Mapping):
        raise DecoderRefused("a tokenizer without a decoder is not supported")
    steps = _Steps()
    parts: Sequence[Any] = decoder.get("decoders", ()) if decoder.get("type") == "Sequence" else (decoder,)
    for part in parts:
        _read_part(part, steps)
    others = steps.byte_fallback or steps.replacements or steps.strip or steps.drop_first
    if (steps.byte_level and (others or steps.continues)) or (steps.continues and others):
        kind = "ByteLevel" if steps.byte_level else "WordPiece"
        raise DecoderRefused(f"a decoder that mixes {kind} with other parts is not supported")
    return steps


def _read_part(part: Mapping[str, Any], steps: _Steps) -> None:
    match part:
        case {"type": "ByteLevel"}:
            steps.byte_level = True
        case {"type": "WordPiece", "prefix": str(prefix)} if prefix:
            steps.continues = prefix
        case {"type": "ByteFallback"}:
            steps.byte_fallback = True
        case {"type": "Fuse"}:
            pass
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            steps.replacements.append((old, new))
        case {"type": "Strip", "content": str(content), "start": 0 | 1 as start, "stop": 0} if len(content) == 1:
            steps.strip = content if start else ""
        case {"type": "Metaspace", "replacement": str(replacement), **rest} if replacement:
            steps.replacements.append((replacement, " "))
            # Older files say add_prefix_space, newer ones prepend_scheme.
            if rest.get("prepend_scheme", "always" if rest.get("add_prefix_space", True) else "never") != "never":
                steps.drop_first = replacement
        case _:
            name = part.get("type") if isinstance(part, Mapping) else part
            raise DecoderRefused(f"the decoder {str(name)[:64]!r} (or one of its settings) is not supported")
