"""The number of JSON values of a body is bounded before it is decoded."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.http.body_values import NESTED, ValueCounter, check_values

pytestmark = pytest.mark.anyio

texts = st.text(st.sampled_from('a"\\,[{:\n\u00e9'), max_size=8)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)


def count(value: object) -> int:
    """The count of a value, without its place in the one around it."""
    if isinstance(value, dict):
        return NESTED + NESTED * len(value) + max(0, len(value) - 1) + sum(map(count, value.values()))
    if isinstance(value, list):
        return NESTED + max(0, len(value) - 1) + sum(map(count, value))
    return 0


@given(values, st.integers(1, 9), st.booleans())
def test_values_are_counted_in_any_chunks(value: object, size: int, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    counter = ValueCounter()
    for begin in range(0, len(raw), size):
        counter.feed(raw[begin : begin + size])
    assert counter.values == count(value)


async def test_the_last_value_passes_and_the_next_is_refused() -> None:
    await check_values(b"[" + b"1," * 96 + b"1]", 100)
    with pytest.raises(RequestError, match="max_body_values") as refused:
        await check_values(b"[" + b"1," * 97 + b"1]", 100)
    assert refused.value.status == 413


@pytest.mark.parametrize("raw", [b"[],", b"{},", b'{"a":1},'], ids=str)
async def test_nested_values_count_more(raw: bytes) -> None:
    with pytest.raises(RequestError, match="max_body_values"):
        await check_values(b"[" + raw * 25 + b"1]", 100)


async def test_text_is_not_counted() -> None:
    await check_values(json.dumps("[,{:" * 1000).encode(), 100)
