"""Costs that gateways publish: bounded, and each counted once."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.shared.served_costs import MAX_BYTES, OthersCosts, PublishedCosts


def test_what_was_served_since_the_last_time_is_counted() -> None:
    published, others = PublishedCosts(), OthersCosts()
    assert list(others.update({"g": published.update({"m": {"a": 5.0}})})) == [], "from before it was seen"
    text = published.update({"m": {"a": 2.0, "b": 3.0}})
    assert list(others.update({"g": text})) == [("m", "b", 3.0), ("m", "a", 2.0)]
    assert list(others.update({"g": published.update({})})) == []
    assert list(others.update({})) == []
    assert list(others.update({"g": published.update({"m": {"a": 7.0}})})) == [], "it has left and come back"


def test_an_estimate_that_was_too_high_is_counted_once() -> None:
    published, others = PublishedCosts(), OthersCosts()
    list(others.update({"g": published.update({})}))
    counted = [
        cost
        for served in (100.0, -90.0, 30.0, 70.0, 5.0)
        for _, _, cost in others.update({"g": published.update({"m": {"a": served}})})
    ]
    assert counted == [100.0, 10.0, 5.0]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e6), max_size=3), max_size=8))
def test_whatever_is_served_is_counted_in_the_end(rounds: list[dict[str, float]]) -> None:
    published, others = PublishedCosts(), OthersCosts()
    list(others.update({"g": published.update({})}))
    counted = dict.fromkeys("abc", 0.0)
    for served in rounds:
        for _, client, cost in others.update({"g": published.update({"m": served})}):
            counted[client] += cost
    for client in "abc":
        assert counted[client] == pytest.approx(sum(served.get(client, 0.0) for served in rounds), abs=0.1)


def test_the_clients_that_were_served_most_are_published() -> None:
    published = PublishedCosts()
    text = published.update({"m" * 200: {f"{number:04}" + "é" * 60: float(number) for number in range(2000)}})
    clients = msgspec.json.decode(text)["m" * 200]
    assert len(text) <= MAX_BYTES
    assert len(clients) > 150
    assert {name[:4] for name in clients} == {f"{number:04}" for number in range(2000 - len(clients), 2000)}
    text = published.update({"n": {"é" * 60: 1.0}})
    assert len(text) <= MAX_BYTES
    assert msgspec.json.decode(text)["n"] == {"é" * 60: 1.0}, "it was served last"


@pytest.mark.parametrize("text", [b"no json", b'{"m": 1}', b'{"m": {"a": "b"}}'])
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="costs of gateway 'g'"):
        list(OthersCosts().update({"g": text}))
