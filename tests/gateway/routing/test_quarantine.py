"""Requests that equal one that killed workers, and the time that it is remembered."""

import pytest

from gateway.routing.quarantine import MAX_REMEMBERED, REFUSED_AFTER, REMEMBERED_S, Quarantine
from protocol.request import ChatInput, Input, Message, Sampling, TextInput, TokensInput

TEXT, SAMPLING = TextInput("die"), Sampling(temperature=1.0, seed=1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attribute(quarantine: Quarantine, model: str, prompt: Input, sampling: Sampling) -> None:
    for _ in range(REFUSED_AFTER):
        assert not quarantine.refuses(model, prompt, sampling)
        quarantine.add(model, prompt, sampling)


def chat(text: str, now: int) -> ChatInput:
    return ChatInput((Message("user", text),), now=now)


@pytest.mark.parametrize(
    ("added", "asked"),
    [
        (("m", TEXT, SAMPLING), ("m", TEXT, Sampling(temperature=1.0, seed=2))),
        (("m", chat("die", 1), SAMPLING), ("m", chat("die", 2), SAMPLING)),
    ],
    ids=["seed", "time"],
)
def test_what_the_door_makes_up_makes_no_difference(
    added: tuple[str, Input, Sampling], asked: tuple[str, Input, Sampling]
) -> None:
    quarantine = Quarantine(Clock())
    attribute(quarantine, *added)
    assert quarantine.refuses(*asked)


@pytest.mark.parametrize(
    "asked",
    [
        ("other", TEXT, SAMPLING),
        ("m", TextInput("live"), SAMPLING),
        ("m", TokensInput(tuple(b"die")), SAMPLING),
        ("m", chat("die", 0), SAMPLING),
        ("m", TEXT, Sampling(temperature=0.5, seed=1)),
    ],
    ids=["model", "prompt", "kind of prompt", "chat", "sampling"],
)
def test_another_request_is_let_in(asked: tuple[str, Input, Sampling]) -> None:
    quarantine = Quarantine(Clock())
    attribute(quarantine, "m", TEXT, SAMPLING)
    assert not quarantine.refuses(*asked)


def test_it_is_forgotten_in_time_counted_from_the_last_verdict() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    other = TextInput("other")
    for prompt in (TEXT, other, other, TEXT):
        quarantine.add("m", prompt, SAMPLING)
        clock.now += 1.0
    assert quarantine.refuses("m", TEXT, SAMPLING)
    assert quarantine.refuses("m", other, SAMPLING)
    clock.now += REMEMBERED_S - 1.5
    assert not quarantine.refuses("m", other, SAMPLING)
    assert quarantine.refuses("m", TEXT, SAMPLING)
    clock.now += 0.5
    assert not quarantine.refuses("m", TEXT, SAMPLING)
    quarantine.add("m", TEXT, SAMPLING)
    assert not quarantine.refuses("m", TEXT, SAMPLING), "the old verdicts are forgotten, too"


def test_the_oldest_makes_room() -> None:
    quarantine = Quarantine(Clock())
    for number in range(MAX_REMEMBERED):
        attribute(quarantine, "m", TextInput(str(number)), SAMPLING)
    assert quarantine.refuses("m", TextInput("0"), SAMPLING)
    quarantine.add("m", TEXT, SAMPLING)
    assert not quarantine.refuses("m", TextInput("0"), SAMPLING)
    assert quarantine.refuses("m", TextInput("1"), SAMPLING)


def test_an_attribution_that_was_forgotten_does_not_add_to_a_later_one() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    quarantine.add("m", TEXT, SAMPLING)
    clock.now += REMEMBERED_S
    quarantine.add("m", TEXT, SAMPLING)
    assert not quarantine.refuses("m", TEXT, SAMPLING)
