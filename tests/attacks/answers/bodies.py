"""Bodies that take long to decode, to count or to pass on, by name. Each is made when it is sent: most have 8 MiB."""

import json
from collections.abc import Callable

from tests.attacks.answers.posts import CHAT, COMPLETIONS

SIZE = 8 * 1024 * 1024
"""The default of `max_body_bytes`."""


def filled(before: bytes, unit: bytes, after: bytes, size: int = SIZE) -> bytes:
    """As many copies of `unit` as fit between; the comma after the last one is left out."""
    count = (size - len(before) - len(after)) // len(unit)
    return (before + unit * count).removesuffix(b",") + after


def members(before: bytes, value: bytes, after: bytes, size: int = SIZE) -> bytes:
    """An object of as many members as fit, each with another name."""
    count = (size - len(before) - len(after)) // (len(value) + 10)
    return before + b",".join(b'"%06d":%s' % (number, value) for number in range(count)) + after


_PROMPT = b'{"model":"scripted","max_tokens":1,"prompt":'
_OPTION = b'{"model":"scripted","prompt":"x","lora":'
_MESSAGES = b'{"model":"scripted","max_tokens":1,"messages":['

BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "ids": (COMPLETIONS, lambda: filled(_PROMPT + b"[", b"1,", b"]}")),
    "ids-of-six-digits": (COMPLETIONS, lambda: filled(_PROMPT + b"[", b"100000,", b"]}")),
    "lists-of-ids": (COMPLETIONS, lambda: filled(_PROMPT + b"[", b"[1],", b"]}")),
    "texts": (COMPLETIONS, lambda: filled(_PROMPT + b"[", b'"",', b"]}")),
    "nested-arrays-in-an-option": (COMPLETIONS, lambda: filled(_OPTION + b"[", b"[],", b"]}")),
    "objects-in-an-option": (COMPLETIONS, lambda: filled(_OPTION + b"[", b"{},", b"]}")),
    "members-of-an-option": (COMPLETIONS, lambda: members(_OPTION + b"{", b"0", b"}}")),
    "depth": (COMPLETIONS, lambda: _OPTION + b"[" * (SIZE // 2 - 100) + b"]" * (SIZE // 2 - 100) + b"}"),
    "metadata": (COMPLETIONS, lambda: members(b'{"model":"scripted","prompt":"x","metadata":{', b'""', b"}}")),
    "biases": (COMPLETIONS, lambda: members(b'{"model":"scripted","prompt":"x","logit_bias":{', b"0", b"}}")),
    "stops": (COMPLETIONS, lambda: filled(b'{"model":"scripted","prompt":"x","stop":[', b'"a",', b"]}")),
    "messages": (CHAT, lambda: filled(_MESSAGES, b'{"role":"user","content":"x"},', b"]}")),
    "parts": (
        CHAT,
        lambda: filled(_MESSAGES + b'{"role":"user","content":[', b'{"type":"text","text":""},', b"]}]}"),
    ),
    "names": (CHAT, lambda: filled(_MESSAGES + b'{"role":"user","content":"x","name":[', b"[],", b"]}]}")),
    "text-with-commas": (COMPLETIONS, lambda: _PROMPT + b'"' + b"," * (4 * 1024 * 1024 + 1) + b'"}'),
    "escapes": (COMPLETIONS, lambda: filled(_PROMPT + b'"', b"\\u00e9", b'"}')),
    "quotes": (COMPLETIONS, lambda: filled(_PROMPT + b'"', b'\\"', b'"}')),
    "space": (COMPLETIONS, lambda: b" " * SIZE),
    "repeated-fields": (COMPLETIONS, lambda: filled(b"{", b'"model":"m",', b'"x":1}')),
    "a-field-of-backticks": (COMPLETIONS, lambda: filled(b'{"', b"`", b'":1}')),
    "a-role-like-a-message": (CHAT, lambda: filled(_MESSAGES + b'{"role":"', b" - at `$.", b'","content":"x"}]}')),
    "ids-at-the-bound": (COMPLETIONS, lambda: _PROMPT + b"[" + b"1," * 500_000 + b"1]}"),
    "arrays-at-the-bound": (COMPLETIONS, lambda: _OPTION + b"[" + b"[]," * 104_000 + b"1]}"),
    "members-at-the-bound": (
        COMPLETIONS,
        lambda: members(b'{"model":"scripted","prompt":"x","metadata":{', b'""', b"}}", size=12 * 104_000),
    ),
    "ids-times-64": (
        COMPLETIONS,
        lambda: b'{"model":"scripted","n":64,"max_tokens":1,"prompt":[' + b"1," * 130_000 + b"1]}",
    ),
    "text-times-64": (
        COMPLETIONS,
        lambda: json.dumps({"model": "scripted", "n": 64, "max_tokens": 1, "prompt": "x" * 261_000}).encode(),
    ),
    "messages-times-64": (
        CHAT,
        lambda: (
            b'{"model":"scripted","n":64,"max_tokens":1,"messages":['
            + b",".join([b'{"role":"user","content":"x"}'] * 4096)
            + b"]}"
        ),
    ),
}
