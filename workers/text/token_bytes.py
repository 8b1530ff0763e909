"""The bytes of each token, from the decoder that a tokenizer.json describes.

The `tokenizers` library decodes whole sequences only; token by token that costs a window of repeated work and guesses
about half characters. The two decoders that the served families use say what each token's bytes are, so they are read
here once: byte-level BPE (GPT-2, Llama 3, Qwen, Mistral Nemo) and sentencepiece pieces with byte fallback (Llama 2,
Mistral). Any other decoder is refused by name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class DecoderRefused(Exception):
    """The tokenizer's decoder has a part whose pieces are not known here. The text names the part."""


@dataclass(slots=True)
class _Plan:
    """What the decoder does to a token, gathered from its parts."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: list[tuple[str, str]] = field(default_factory=list)
    strip: str = ""
    """One character that is taken off the front of a text."""
    drop_first: str = ""
    """A character that is left out of the first token, wherever it stands."""


def _byte_of_character() -> Mapping[str, int]:
    """GPT-2's printable stand-ins for bytes (https://github.com/openai/gpt-2, encoder.py), backwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


class TokenBytes:
    """Bytes by token id, computed when first asked for."""

    def __init__(
        self, decoder: Mapping[str, Any] | None, token_of: Callable[[int], str | None], silent: frozenset[str]
    ) -> None:
        """`decoder` is that object of tokenizer.json; `silent` are the special tokens, which have no text.

        Raises `DecoderRefused`.
        """
        self._plan = _read(decoder)
        self._token_of = token_of
        self._silent = silent
        self._bytes = _byte_of_character()
        self._known: dict[int, bytes] = {}

    def piece(self, token: int, *, first: bool = False) -> bytes:
        if first:
            return self._compute(token, first=True)
        known = self._known.get(token)
        if known is None:
            known = self._compute(token, first=False)
            if known:  # ids that are in no vocabulary come from clients, in any number
                self._known[token] = known
        return known

    def _compute(self, token: int, *, first: bool) -> bytes:
        text = self._token_of(token)
        if text is None or text in self._silent:
            return b""
        if self._plan.byte_level:
            try:
                return bytes([self._bytes[character] for character in text])
            except KeyError:
                return text.encode("utf-8", "replace")
        return self._sentencepiece(text, first=first)

    def _sentencepiece(self, text: str, *, first: bool) -> bytes:
        plan = self._plan
        if first and plan.drop_first:
            text = text.replace(plan.drop_first, "")
        for old, new in plan.replacements:
            text = text.replace(old, new)
        match = _BYTE_TOKEN.fullmatch(text) if plan.byte_fallback else None
        piece = bytes((int(match[1], 16),)) if match else text.encode("utf-8", "replace")
        return piece.removeprefix(plan.strip.encode()) if first else piece


def _read(decoder: Mapping[str, Any] | None) -> _Plan:
    if not isinstance(decoder, Mapping):
        raise DecoderRefused("a tokenizer without a decoder is not supported")
    plan = _Plan()
    parts: Sequence[Any] = decoder.get("decoders", ()) if decoder.get("type") == "Sequence" else (decoder,)
    for part in parts:
        _read_part(part, plan)
    if plan.byte_level and (plan.byte_fallback or plan.replacements or plan.strip or plan.drop_first):
        raise DecoderRefused("a decoder that mixes ByteLevel with other parts is not supported")
    return plan


def _read_part(part: Mapping[str, Any], plan: _Plan) -> None:
    match part:
        case {"type": "ByteLevel"}:
            plan.byte_level = True
        case {"type": "ByteFallback"}:
            plan.byte_fallback = True
        case {"type": "Fuse"}:
            pass
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            plan.replacements.append((old, new))
        case {"type": "Strip", "content": str(content), "start": 0 | 1 as start, "stop": 0} if len(content) == 1:
            plan.strip = content if start else ""
        case {"type": "Metaspace", "replacement": str(replacement), **rest} if replacement:
            plan.replacements.append((replacement, " "))
            # Older files say add_prefix_space, newer ones prepend_scheme.
            if rest.get("prepend_scheme", "always" if rest.get("add_prefix_space", True) else "never") != "never":
                plan.drop_first = replacement
        case _:
            name = part.get("type") if isinstance(part, Mapping) else part
            raise DecoderRefused(f"the decoder {str(name)[:64]!r} (or one of its settings) is not supported")
