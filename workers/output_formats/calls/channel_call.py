"""Parser of calls that are messages of a channel."""

from workers.output_formats.calls.characters import Malformed, Parser, Reason
from workers.output_formats.calls.context import CallContext
from workers.output_formats.calls.values import object_value


def channel_call(context: CallContext, tool: str) -> Parser:
    """Read the arguments of a call, which are the body of a message."""
    yield from context.chars.space()
    if (yield from context.chars.peek()) != "{":
        raise Malformed(Reason.ARGUMENTS if (yield from context.chars.peek()) else Reason.TRUNCATED)
    context.begin(tool)
    yield from object_value(context.chars, context.sink.arguments)
    context.sink.end()
