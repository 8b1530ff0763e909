"""The errors for bodies that do not decode."""

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from gateway.errors import RequestError
from gateway.http.json_body import Hints, decode_body


class Part(Struct, forbid_unknown_fields=True):
    kind: Literal["text"]


class Sample(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1)]
    parts: tuple[Part, ...] = ()


class Settings(Struct, forbid_unknown_fields=True):
    max_tokens: int = 0
    options: Sample | None = None
    items: tuple[Part, ...] = ()


DECODER = msgspec.json.Decoder(Sample)
HINTS = Hints(takes={"kind": "text, and nothing else"}, elsewhere={"prompt": "/v1/other"})


def test_a_good_body_is_decoded() -> None:
    assert decode_body(DECODER, b'{"count":1,"parts":[{"kind":"text"}]}').parts == (Part("text"),)


@pytest.mark.parametrize(
    ("raw", "code", "field", "text"),
    [
        (b"{", "invalid_json", None, "the body is not valid JSON: Input data was truncated"),
        (b"[]", "invalid_request", None, "Expected `object`, got `array`"),
        (b"{}", "invalid_request", "count", "`count` is required"),
        (b'{"count":0}', "invalid_request", "count", "`count`: Expected `int` >= 1"),
        (
            b'{"count":1,"parts":[{"kind":"text"},{"kind":"image"}]}',
            "invalid_request",
            "parts[1].kind",
            "`parts[1].kind` takes text, and nothing else, not 'image'",
        ),
        (b'{"count":1,"x":1}', "unknown_parameter", "x", "`x` is not a parameter that Baton knows"),
        (b'{"count":1,"`x`y":1}', "unknown_parameter", "`x`y", "``x`y` is not a parameter that Baton knows"),
        (
            b'{"count":1,"parts":[{"kind":"text","`":1}]}',
            "unknown_parameter",
            "parts[0].`",
            "`parts[0].`` is not a parameter that Baton knows",
        ),
        (
            b'{"count":1,"prompt":1}',
            "unknown_parameter",
            "prompt",
            "`prompt` is not a parameter that Baton knows here: it belongs to /v1/other",
        ),
    ],
)
def test_a_refusal_names_the_field(raw: bytes, code: str, field: str | None, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_body(DECODER, raw, HINTS)
    assert (caught.value.code, caught.value.field, caught.value.text) == (code, field, text)


def test_a_long_name_is_shortened() -> None:
    with pytest.raises(RequestError) as caught:
        decode_body(DECODER, b'{"count":1,"parts":[{"kind":"text","%s":1}]}' % (b"`" * 100_000))
    assert caught.value.field == "parts[0]." + "`" * 91


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        (b'{"max_token":1}', "`max_token` is not a parameter that Baton knows: did you mean `max_tokens`?"),
        (b'{"maxTokens":1}', "`maxTokens` is not a parameter that Baton knows: did you mean `max_tokens`?"),
        (b'{"num_predict":1}', "`num_predict` is not a parameter that Baton knows: did you mean `max_tokens`?"),
        (b'{"count":1}', "`count` is not a parameter that Baton knows: did you mean `options.count`?"),
        (b'{"kind":1}', "`kind` is not a parameter that Baton knows"),
        (b'{"tokens":1}', "`tokens` is not a parameter that Baton knows: did you mean `max_tokens`?"),
        (b'{"token":1}', "`token` is not a parameter that Baton knows"),
        (
            b'{"options":{"count":1,"parts":[{"kinds":1}]}}',
            "`options.parts[0].kinds` is not a parameter that Baton knows: did you mean `kind`?",
        ),
    ],
)
def test_an_unknown_field_gets_the_name_of_one_that_was_meant(raw: bytes, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_body(msgspec.json.Decoder(Settings), raw)
    assert caught.value.text == hint


def test_a_near_name_is_searched_for_names_of_64_characters() -> None:
    long = msgspec.defstruct("Long", [("a" * 64, int)], forbid_unknown_fields=True)
    for name, hint in (("a" * 63 + "b", f": did you mean `{'a' * 64}`?"), ("a" * 65, "")):
        with pytest.raises(RequestError) as caught:
            decode_body(msgspec.json.Decoder(long), f'{{"{name}":1}}'.encode())
        assert caught.value.text == f"`{name}` is not a parameter that Baton knows{hint}"
