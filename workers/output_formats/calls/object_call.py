"""Parser of calls that are JSON objects with a name and arguments, in any order."""

from collections.abc import Generator
from dataclasses import dataclass, field

from workers.output_formats.calls.characters import Characters, Malformed, Parser, Reason
from workers.output_formats.calls.context import CallContext
from workers.output_formats.calls.values import as_json, is_end, object_value, string, value
from workers.output_formats.formats.model_format import ObjectCall


@dataclass(slots=True)
class _ObjectState:
    name: str = ""
    began: bool = False
    ended: bool = False
    held: list[str] = field(default_factory=list)
    """Arguments that came before the name."""
    complete: bool = False
    """The arguments are."""


def object_call(context: CallContext, notation: ObjectCall) -> Parser:
    """Read one call."""
    state = _ObjectState()
    yield from _members(context, notation, state, nested=False)
    if not state.ended:
        _begin(context, state)
        if not state.complete:
            context.sink.arguments("{}")
        context.sink.end()


def _begin(context: CallContext, state: _ObjectState) -> None:
    if not state.began:
        context.begin(state.name)
        state.began = True
        context.sink.arguments("".join(state.held))
        state.held.clear()


def _members(context: CallContext, notation: ObjectCall, state: _ObjectState, *, nested: bool) -> Parser:
    chars = context.chars
    yield from chars.literal("{")
    while True:
        yield from chars.space()
        if (yield from chars.peek()) == "}":
            yield from chars.take()
            return
        key = yield from string(chars)
        yield from chars.space()
        yield from chars.literal(":")
        yield from chars.space()
        first = yield from chars.peek()
        if first == "{" and key == "function" and not nested:
            yield from _members(context, notation, state, nested=True)
        elif first == '"' and (key in notation.names or key == "function") and not state.name:
            state.name = yield from string(chars)
        elif key in notation.arguments and not state.complete:
            yield from _arguments(context, state)
        elif context.known_only and key not in ("type", "id"):
            raise Malformed(Reason.SYNTAX)
        else:
            yield from value(chars, lambda text: None)
        _advance(context, state)
        yield from chars.space()
        following = yield from chars.peek()
        if following == ",":
            yield from chars.take()
        elif state.ended and is_end(following):
            return  # without its last brace
        elif following != "}":
            raise Malformed(Reason.SYNTAX if following else Reason.TRUNCATED)


def _advance(context: CallContext, state: _ObjectState) -> None:
    """Complete the call as soon as its name and its arguments are known."""
    if state.name and state.complete and not state.ended:
        _begin(context, state)
        context.sink.end()
        state.ended = True


def _arguments(context: CallContext, state: _ObjectState) -> Parser:
    chars = context.chars
    first = yield from chars.peek()
    emit = context.sink.arguments if state.name else state.held.append
    if first == "{":
        if state.name:
            _begin(context, state)
        yield from object_value(chars, emit)
    elif first == '"':  # JSON within a string
        text = yield from _object_text(chars)
        if state.name:
            _begin(context, state)
        emit(text)
    else:
        if first != "n":
            raise Malformed(Reason.ARGUMENTS if first else Reason.TRUNCATED)
        yield from chars.literal("null")
        if state.name:
            _begin(context, state)
        emit("{}")
    state.complete = True


def _object_text(chars: Characters) -> Generator[None, str, str]:
    text = as_json((yield from string(chars)))
    if not text.startswith("{"):
        raise Malformed(Reason.ARGUMENTS)
    return text
