"""Reads values as models write them, and writes them as JSON while they come.

What is written at any time is the beginning of a JSON text, and once the value ends it is one. Beyond JSON it reads
what models write in its place: line breaks and invalid escapes in strings, trailing and missing commas, keys and words
without quotes, Python's literals, non-finite numbers, which become null, and objects that a call ends within.
"""

import json
import math
import re
from collections.abc import Generator

from workers.output_formats.calls.characters import SPACE, Characters, Emit, Malformed, Parser, Reason
from workers.output_formats.formats.model_format import JSON, Notation

MAX_DEPTH = 64
STRICT = Notation(strict=True)
MAX_SCALAR = 1024
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LOOSE_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SCALAR = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-._")
_WORDS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
    "nan": "null",
    "NaN": "null",
    "-NaN": "null",
    "inf": "null",
    "-inf": "null",
    "Infinity": "null",
    "-Infinity": "null",
}
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_HEX = frozenset("0123456789abcdefABCDEF")


def escaped(text: str) -> str:
    """Return a text as it is written within a JSON string."""
    return "".join([_ESCAPES.get(c) or (c if c >= " " else f"\\u{ord(c):04x}") for c in text])


def value(chars: Characters, emit: Emit, notation: Notation = JSON, depth: int = 0) -> Parser:
    """Read one value and emit it as JSON."""
    first = yield from chars.peek()
    if first == "{":
        yield from object_value(chars, emit, notation, depth)
    elif first == "[":
        yield from _array(chars, emit, notation, depth)
    elif delimiter := _delimiter(first, notation):
        yield from _string(chars, emit, delimiter, notation)
    else:
        yield from _scalar(chars, emit, notation)


def object_value(chars: Characters, emit: Emit, notation: Notation = JSON, depth: int = 0) -> Parser:
    """Read an object and emit it as JSON."""
    yield from chars.literal("{")
    yield from _container(chars, emit, notation, depth, "{", "}")


def _array(chars: Characters, emit: Emit, notation: Notation, depth: int) -> Parser:
    yield from chars.literal("[")
    yield from _container(chars, emit, notation, depth, "[", "]")


def _container(chars: Characters, emit: Emit, notation: Notation, depth: int, opening: str, closing: str) -> Parser:
    """Read an array or an object after its first character. A trailing comma is dropped."""
    if depth >= MAX_DEPTH:
        raise Malformed(Reason.DEPTH)
    emit(opening)
    comma: str | None = ""
    while True:
        space = yield from chars.space()
        following = yield from chars.peek()
        if following == closing:
            yield from chars.take()
            emit(space + closing)
            return
        if not notation.strict and _closes(following, notation):
            emit(closing)
            return
        if comma is None:
            if notation.strict:
                raise Malformed(Reason.SYNTAX)
            comma = ","
        if opening == "{":
            yield from _member(chars, emit, notation, depth, comma + space)
        else:
            emit(comma + space)
            yield from value(chars, emit, notation, depth + 1)
        comma = None
        space = yield from chars.space()
        if (yield from chars.peek()) == ",":
            comma = space + (yield from chars.take())
        elif space and (yield from chars.peek()) == closing:
            emit(space)


def _closes(character: str, notation: Notation) -> bool:
    """Return whether the value around an array or an object ends with this character, or the call does."""
    return character in "]})" or (is_end(character) and not _delimiter(character, notation))


def is_end(character: str) -> bool:
    """Return whether the answer or the call ends where a value could continue: a marker begins, or nothing follows."""
    return not character or character in "<`" or "\ud800" <= character <= "\udfff"


def _member(chars: Characters, emit: Emit, notation: Notation, depth: int, before: str) -> Parser:
    first = yield from chars.peek()
    if delimiter := _delimiter(first, notation):
        emit(before)
        yield from _string(chars, emit, delimiter, notation)
    elif (notation.bare_keys or not notation.strict) and first and (first.isalnum() or first in "_$"):
        key = ""
        while (character := (yield from chars.peek())) not in SPACE and character not in ":,{}[]":
            key += yield from chars.some()
        emit(f'{before}"{escaped(key)}"')
    else:
        raise Malformed(Reason.SYNTAX if first else Reason.TRUNCATED)
    space = yield from chars.space()
    yield from chars.literal(":")
    space += ":" + (yield from chars.space())
    emit(space)
    yield from value(chars, emit, notation, depth + 1)


def _delimiter(first: str, notation: Notation) -> str:
    """Return the delimiter of a string that begins with this character; the empty string for another value."""
    if first == '"' or (first == "'" and notation.python):
        return first
    return next((each for each in notation.delimiters if first and each[0] == first), "")


def _string(chars: Characters, emit: Emit, delimiter: str, notation: Notation) -> Parser:
    yield from chars.literal(delimiter)
    emit('"')
    if delimiter in notation.delimiters:
        yield from chars.until((delimiter,), lambda character: emit(escaped(chars.shown(character))))
    else:
        while (character := (yield from chars.some())) != delimiter:
            if character == "\\":
                yield from _escape(chars, emit)
            else:
                emit(escaped(chars.shown(character)))
    emit('"')


def _escape(chars: Characters, emit: Emit) -> Parser:
    """Read what follows a backslash. One that begins no escape of JSON or Python stands for itself."""
    kind = yield from chars.some()
    if kind in '"\\/bfnrt':
        emit("\\" + kind)
    elif kind == "'":
        emit("'")
    elif kind in "ux":
        length, digits = (4 if kind == "u" else 2), ""
        while len(digits) < length and (yield from chars.peek()) in _HEX:
            digits += yield from chars.some()
        emit("\\u" + digits.zfill(4) if len(digits) == length else f"\\\\{kind}{digits}")
    else:
        emit("\\\\" + escaped(chars.shown(kind)))


def _scalar(chars: Characters, emit: Emit, notation: Notation) -> Parser:
    """Read a number or a word. Words without quotes are a string, if that is to be repaired."""
    text = ""
    while (character := (yield from chars.peek())) not in ',]})"\n' and not is_end(character):
        text += yield from chars.take()
        if len(text) > MAX_SCALAR:
            raise Malformed(Reason.SYNTAX)
        if character in SPACE and (notation.strict or (yield from chars.peek()) in SPACE):
            break
    text = text.rstrip()
    if not text:
        raise Malformed(Reason.SYNTAX if (yield from chars.peek()) else Reason.TRUNCATED)
    try:
        emit(scalar(text))
    except Malformed:
        if notation.strict:
            raise
        emit(f'"{escaped(text)}"')


def scalar(text: str) -> str:
    """Return a number or a word as JSON. Raises `Malformed`."""
    if word := _WORDS.get(text):
        return word
    if _NUMBER.fullmatch(text):
        return text
    if not _LOOSE_NUMBER.fullmatch(text):
        raise Malformed(Reason.SYNTAX)
    digits = text.removeprefix("+")
    number = int(digits) if digits.lstrip("-").isdigit() else float(digits)
    return json.dumps(number) if math.isfinite(number) else "null"


def string(chars: Characters) -> Generator[None, str, str]:
    """Read a JSON string and return its text."""
    parts: list[str] = []
    if (yield from chars.peek()) != '"':
        raise Malformed(Reason.SYNTAX if (yield from chars.peek()) else Reason.TRUNCATED)
    yield from _string(chars, parts.append, '"', JSON)
    text: str = json.loads("".join(parts))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # escapes may be lone surrogates


def as_json(text: str, notation: Notation = STRICT) -> str:
    """Return a whole text as JSON. Raises `Malformed` if it is not one value."""
    parts: list[str] = []
    chars = Characters({})

    def whole() -> Parser:
        yield from chars.space()
        yield from value(chars, parts.append, notation)
        yield from chars.space()
        if (yield from chars.peek()):
            raise Malformed(Reason.SYNTAX)

    parser = whole()
    next(parser)
    try:
        for character in text:
            parser.send(character)
        parser.send("")
    except StopIteration:
        return "".join(parts)
    raise Malformed(Reason.TRUNCATED)
