"""What msgspec's decoder says about a body that it does not take, in words that help its sender."""

import re

from gateway.errors import RefusalCode, RequestError, invalid
from protocol.bounds import MAX_TOP_LOGPROBS

_AT = re.compile(r" - at (?:`key` in )?`\$\.?([^`]*?)(?:\[\.\.\.\])?`$")
"""Where the decoder stopped; of a mapping it is the mapping, whether a key or a value is wrong."""
_FIELD = re.compile(r"^Object (?:contains unknown|missing required) field `([^`]*)`")
_NO_CHOICE = "Invalid enum value "
_TAKES = {
    "role": "system, developer, user or assistant",
    "type": "text, the only kind of content here",
    "logprobs": f"a number from 0 to {MAX_TOP_LOGPROBS}",
    "include_obfuscation": "false",
}
"""What the fields of few values take, which the decoder does not say."""
_ELSEWHERE = {"prompt": "/v1/completions", "messages": "/v1/chat/completions"}
"""Fields that tell of a body sent to the other endpoint."""


def refusal(message: str) -> RequestError:
    """The answer to a body of which the decoder said this. It names the field."""
    at, name = _AT.search(message), _FIELD.match(message)
    path = at.group(1) if at else ""
    if name is not None:
        path = f"{path}.{name.group(1)}" if path else name.group(1)
    text = _AT.sub("", message)[:300]
    where = f"`{path[:100]}`"
    if message.startswith("Object contains unknown"):
        hint = f" here: it belongs to {_ELSEWHERE[path]}" if path in _ELSEWHERE else ""
        return invalid(path[:100], f"{where} is not a parameter that Baton knows{hint}", RefusalCode.UNKNOWN_PARAMETER)
    if message.startswith("Object missing required"):
        return invalid(path[:100], f"{where} is required")
    takes = _TAKES.get(path.rpartition(".")[2])
    if takes and text.startswith(_NO_CHOICE):
        return invalid(path[:100], f"{where} takes {takes}, not {text.removeprefix(_NO_CHOICE)}")
    return invalid(path[:100] or None, f"{where}: {text}" if path else text)
