"""Messages with one call each, for templates that show the first call of a message alone (gpt-oss)."""

from collections.abc import Sequence
from typing import Any

from protocol.request import Message

Value = list[Any]
"""The texts of a message: role, content, name, reasoning, id of the call that it answers, and calls."""


def single_calls(messages: Sequence[Message], values: Sequence[Value]) -> tuple[list[Message], list[Value]]:
    """Return messages and their texts in which a message with several calls has become one for each call, with its
    results behind it. Text and reasoning stay with the first. Results of none of the calls stay behind the last one."""
    made: list[tuple[Message, Value]] = []
    pairs = list(zip(messages, values, strict=True))
    at = 0
    while at < len(pairs):
        message, (role, content, name, reasoning, answered, calls) = pairs[at]
        at += 1
        if len(calls) < 2:
            made.append((message, [role, content, name, reasoning, answered, calls]))
            continue
        end = next((place for place in range(at, len(pairs)) if not pairs[place][1][4]), len(pairs))
        results, at = pairs[at:end], end
        for number, call in enumerate(calls):
            first = number == 0
            made.append((message, [role, content if first else "", name, reasoning if first else "", answered, [call]]))
            made += [each for each in results if each[1][4] == call[0]]
        ids = {call[0] for call in calls}
        made += [each for each in results if each[1][4] not in ids]
    return [message for message, _ in made], [value for _, value in made]
