"""Parser of calls with tagged parameters, which become the members of a JSON object."""

import re
from collections.abc import Generator

from workers.output_formats.calls.characters import Characters, Emit, Malformed, Reason
from workers.output_formats.calls.context import MAX_HEADER, CallContext
from workers.output_formats.calls.tool_schemas import cast, quoted
from workers.output_formats.calls.values import escaped
from workers.output_formats.formats.model_format import ParameterCall

_NULL = "null"
_ESCAPED = re.compile(r"\\.", re.DOTALL)


def named_call(context: CallContext, notation: ParameterCall, end: str) -> Generator[None, str, bool]:
    """Read a call after what precedes its name. `end` closes its region; returns whether it was taken."""
    chars, sink = context.chars, context.sink
    ends = (notation.call_close or end, end)
    marker = ""
    if notation.name_close:
        name, _ = yield from chars.text_until((notation.name_close,), MAX_HEADER)
    else:
        name, marker = yield from chars.text_until((notation.key_open, *ends), MAX_HEADER)
    before = "{"
    while True:
        if not marker:
            yield from chars.space()
            if not (yield from chars.peek()):
                break  # the answer ended between two parameters
            marker = yield from one_of(chars, (notation.key_open, *ends))
        if marker != notation.key_open:
            break
        key, text = yield from _key(chars, notation)
        if before == "{":
            name = context.begin(name)
        types = ("string",) if text is True else None if text is False else context.tools.types(name, key)
        sink.arguments(f"{before}{quoted(key)}: ")
        json_untyped = text is False or notation.json_untyped
        following = (notation.key_open, *ends)
        value = _value(chars, sink.arguments, notation.value_close, following, types, json_untyped=json_untyped)
        before, marker = ", ", (yield from value)
    if before == "{":
        context.begin(name)
        sink.arguments("{")
    sink.arguments("}")
    sink.end()
    return marker == end and marker != notation.call_close


def _key(chars: Characters, notation: ParameterCall) -> Generator[None, str, tuple[str, bool | None]]:
    """Read a key and what precedes its value. Returns the key, and whether the value is a string if that is written."""
    key, _ = yield from chars.text_until((notation.key_close,), MAX_HEADER)
    text = None
    if notation.string_flag[0]:
        yield from chars.space()
        yield from chars.literal(notation.string_flag[0])
        word, _ = yield from chars.text_until((notation.string_flag[1],), MAX_HEADER)
        text = word == "true"
    if notation.value_open:
        yield from chars.space()
        yield from chars.literal(notation.value_open)
    return key.strip(), text


def _value(
    chars: Characters,
    emit: Emit,
    close: str,
    following: tuple[str, ...],
    types: tuple[str, ...] | None,
    *,
    json_untyped: bool,
) -> Generator[None, str, str]:
    """Read a value up to `close`: text is emitted while it comes, and a value of another type once it is complete.

    `close` within a string of JSON is a part of it, unless one of the markers `following` follows. Returns that marker
    if it was taken, and the empty string otherwise.
    """
    if types is None and not json_untyped:
        types = ("string",)
    if types is not None and set(types) in ({"string"}, {"string", "null"}):
        text = _TextValue(emit, nullable="null" in types)
        yield from chars.until((close,), lambda character: text.put(chars.shown(character)))
        text.end()
        return ""
    typed = _TypedValue()
    yield from chars.until((close,), typed.parts.append)
    space = yield from chars.space()
    marker = ""
    while typed.in_string() and (yield from chars.peek()):
        marker, begun = yield from _marker(chars, following)
        if marker:
            break
        typed.parts += close + space
        yield from chars.until((close,), typed.parts.append, begun)
        space = yield from chars.space()
    raw = "".join(map(chars.shown, typed.parts)).removeprefix("\n").removesuffix("\n")
    emit(cast(raw, types, json_untyped=json_untyped))
    return marker


def _marker(chars: Characters, markers: tuple[str, ...]) -> Generator[None, str, tuple[str, str]]:
    """Take one of some markers, or the beginning of one. Returns the marker, and the beginning of what is not one."""
    taken = ""
    while (following := (yield from chars.peek())) and any(each.startswith(taken + following) for each in markers):
        taken += yield from chars.take()
        if taken in markers:
            return taken, ""
    return "", taken


class _TypedValue:
    """The characters of a value that may be JSON. Each is scanned once, however many markers it has."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._scanned = 0
        """Number of the parts that were scanned."""
        self._first = ""
        self._backslash = ""
        """One at the end of these, which begins an escape."""
        self._quotes = 0

    def in_string(self) -> bool:
        """Return whether the parts so far are the beginning of JSON that ends within a string."""
        text = "".join(self.parts[self._scanned :])
        self._scanned = len(self.parts)
        self._first = self._first or text.lstrip()[:1]
        unescaped = _ESCAPED.sub("", self._backslash + text)
        self._backslash = "\\" if unescaped.endswith("\\") else ""
        self._quotes += unescaped.count('"')
        return self._first in ("{", "[") and self._quotes % 2 == 1


class _TextValue:
    """Writes a string without the line breaks around it."""

    def __init__(self, emit: Emit, *, nullable: bool) -> None:
        self._emit = emit
        self._nullable = nullable
        self._begun = False
        self._held = ""
        """A line break that may be the last character, or the beginning of `null`."""

    def put(self, text: str) -> None:
        """Add a character, or a marker as text."""
        if not self._begun and self._nullable:
            self._held += text
            if _NULL.startswith(self._held.strip("\n")) and len(self._held) <= len(_NULL) + 2:
                return
            self._begin(self._held)
        elif not self._begun:
            self._begin(text)
        else:
            self._add(text)

    def end(self) -> None:
        """End the string."""
        if not self._begun and self._held.strip("\n") == _NULL:
            self._emit(_NULL)
            return
        if not self._begun:
            self._begin(self._held)
        self._emit('"')

    def _begin(self, text: str) -> None:
        self._begun, self._held = True, ""
        self._emit('"')
        self._add(text.removeprefix("\n"))

    def _add(self, text: str) -> None:
        if not text:
            return
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        self._emit(escaped(text.removesuffix("\n")))


def one_of(chars: Characters, texts: tuple[str, ...]) -> Generator[None, str, str]:
    """Take one of several texts. Raises `Malformed` where another one comes."""
    taken = ""
    while taken not in texts:
        taken += yield from chars.some()
        if not any(text.startswith(taken) for text in texts):
            raise Malformed(Reason.SYNTAX)
    return taken
