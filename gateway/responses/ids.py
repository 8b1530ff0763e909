"""Ids of responses and of their items. An item's id has the token of its response, so that items are found without an
index of their own."""

import re

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_ITEM = re.compile(r"(?:msg|fco?|rs)_([0-9a-f]{24})i?[0-9a-f]{4,8}")


def response_id(token: str) -> str:
    """The id of the response of an exchange with this token."""
    return f"resp_{token}"


def output_item_id(kind: str, response: str, index: int) -> str:
    """The id of the item at `index` in the output of a response."""
    return f"{_PREFIXES[kind]}_{response.removeprefix('resp_')}{index:04x}"


def input_item_id(kind: str, response: str, index: int) -> str:
    """The id of the item at `index` in the input of a response, unless the client gave it one."""
    return f"{_PREFIXES[kind]}_{response.removeprefix('resp_')}i{index:04x}"


def response_of(item: str) -> str | None:
    """The response to which an item with this id belongs; None for an id that is not of this form."""
    found = _ITEM.fullmatch(item)
    return None if found is None else response_id(found.group(1))
