"""Live sequences: each part of an answer is taken once."""

from gateway.body_budget import BodyBudget, HeldBody
from gateway.generation.delta import OutputDelta, TextDelta
from gateway.generation.request import OutputOptions
from gateway.routing.request_group import RequestGroup
from gateway.routing.sequence import LiveSequence
from protocol.commands import Submit
from protocol.events import Delta, Logprobs, TokenLogprob
from protocol.request import Limits, Sampling, TextInput


def sequence() -> LiveSequence:
    group = RequestGroup("r", "m", OutputOptions(stream=True), HeldBody(BodyBudget(1, 1)), 1, lambda group: None)
    return LiveSequence(Submit(1, "r", TextInput("x"), Sampling(), Limits(max_tokens=8)), 0, group, now=0.0)


def take(one: LiveSequence, *, with_tokens: bool) -> list[OutputDelta]:
    deltas: list[OutputDelta] = []
    one.take_into(deltas, with_tokens)
    return deltas


def test_text_tokens_and_log_probabilities_are_taken_once() -> None:
    one = sequence()
    first, second = (Logprobs(TokenLogprob(token, -0.5, b"t"), ()) for token in (5, 6))
    one.push(Delta(1, (5,), "a", (first,)))
    assert take(one, with_tokens=True) == [TextDelta(0, "a", (5,), (first,), None)]
    assert take(one, with_tokens=True) == []
    one.push(Delta(1, (6,), "b", (second,)))
    assert take(one, with_tokens=True) == [TextDelta(0, "b", (6,), (second,), None)]
