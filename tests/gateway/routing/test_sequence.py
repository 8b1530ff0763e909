"""Live sequences: each part of an answer is taken once."""

import pytest

from gateway.body_budget import BodyBudget, HeldBody
from gateway.generation.delta import OutputDelta, StopReason, TextDelta
from gateway.generation.request import OutputOptions
from gateway.routing.failure import Cause
from gateway.routing.request_group import RequestGroup
from gateway.routing.sequence import MAX_REPLAYS, LiveSequence
from protocol.commands import Submit
from protocol.events import Delta, Logprobs, StartedStream, TokenLogprob, Usage
from protocol.request import Limits, Sampling, TextInput, TokensInput


def request() -> RequestGroup:
    return RequestGroup("r", "m", OutputOptions(stream=True), HeldBody(BodyBudget(1, 1)), 1, lambda group: None)


def sequence(max_tokens: int | None = 8, deadline_ms: int = 0) -> LiveSequence:
    group = request()
    limits = Limits(max_tokens=max_tokens, deadline_ms=deadline_ms)
    return LiveSequence(Submit(1, "r", TextInput("x"), Sampling(), limits), 0, group, now=0.0)


def take(one: LiveSequence, *, with_tokens: bool) -> list[OutputDelta]:
    deltas: list[OutputDelta] = []
    one.take_into(deltas, with_tokens, 1 << 20)
    return deltas


def test_text_tokens_and_log_probabilities_are_taken_once() -> None:
    one = sequence()
    first, second = (Logprobs(TokenLogprob(token, -0.5, b"t"), ()) for token in (5, 6))
    one.push(Delta(1, (5,), "a", (first,)))
    assert take(one, with_tokens=True) == [TextDelta(0, "a", (5,), (first,), None)]
    assert take(one, with_tokens=True) == []
    one.push(Delta(1, (6,), "b", (second,)))
    assert take(one, with_tokens=True) == [TextDelta(0, "b", (6,), (second,), None)]


def test_what_the_first_worker_has_computed_of_a_pinned_prefix_counts_after_a_move() -> None:
    """The next one has it in its cache."""
    one, group = sequence(), request()
    one.request, group.sequences = group, [one]
    for worker, started in (
        ("a", StartedStream(1, prompt_tokens=500, cached_tokens=32, created_tokens=448)),
        ("b", None),
    ):
        one.place(one.submit, worker, ("m", "f"), 1000, incarnation=1, now=0.0)
        one.started(started or StartedStream(1, prompt_tokens=501, cached_tokens=500), 1.0)
        one.push(Delta(1, (5,), "a"))
    one.finish(StopReason.END, Usage(500, 2, cached_tokens=500, reasoning_tokens=1))
    counts = group.token_counts()
    assert (counts.cached, counts.created, counts.reasoning) == (32, 448, 1)


def test_a_sequence_without_a_pinned_prefix_has_the_counts_of_its_last_worker() -> None:
    one, group = sequence(), request()
    one.request, group.sequences = group, [one]
    one.finish(StopReason.END, Usage(500, 2, cached_tokens=501, created_tokens=0))
    counts = group.token_counts()
    assert (counts.cached, counts.created) == (500, 0)


@pytest.mark.parametrize(("reported", "counted"), [(0, 52), (52, 52), (900, 500)])
def test_what_was_kept_of_a_prompt_counts_after_a_move(reported: int, counted: int) -> None:
    """A worker that only finds the answer complete computes nothing of the prompt."""
    one, group = sequence(), request()
    one.request, group.sequences = group, [one]
    one.place(one.submit, "a", ("m", "f"), 1000, incarnation=1, now=0.0)
    one.started(StartedStream(1, prompt_tokens=500, kept=(0, 32, 480, 500)), 1.0)
    assert group.token_counts().sparse_kept == 0, "it has no usage yet"
    one.finish(StopReason.END, Usage(500, 2, sparse_kept_tokens=reported))
    assert group.token_counts().sparse_kept == counted


def test_what_was_discarded_is_not_taken() -> None:
    one = sequence()
    first, second = (Logprobs(TokenLogprob(token, -0.5, b"t"), ()) for token in (5, 6))
    one.push(Delta(1, (5,), "a", (first,)))
    assert one.discard() == [first]
    one.push(Delta(1, (6,), "b", (second,)))
    assert take(one, with_tokens=True) == [TextDelta(0, "b", (6,), (second,), None)]


def test_an_end_that_brings_nothing_is_taken() -> None:
    one, group = sequence(), request()
    one.request, group.sequences = group, [one]
    one.push(Delta(1, (5,), "a"))
    assert [delta.stop for delta in group.take()] == [None]
    one.finish(StopReason.END, Usage(1, 1))
    assert group.take() == [TextDelta(0, "", (), (), StopReason.END)]
    assert group.take() == []


def test_the_next_worker_gets_the_tokens_so_far_and_the_rest_of_the_deadline() -> None:
    one = sequence(deadline_ms=5000)
    first = one.submit_as(7, 0.0)
    assert (first.stream, first.resume, first.limits.deadline_ms) == (7, (), 5000)
    one.push(Delta(7, (5, 6), "ab"))
    second = one.submit_as(8, 2.5)
    assert (second.stream, second.resume, second.limits.deadline_ms) == (8, (5, 6), 2500)
    assert one.submit_as(9, 5.5).limits.deadline_ms == 1, "0 would be no deadline"
    assert sequence().submit_as(7, 5.5).limits.deadline_ms == 0


def test_what_exceeds_the_limit_is_not_taken() -> None:
    one = sequence()
    assert one.push(Delta(1, tuple(range(8)), "x"))
    assert not one.push(Delta(1, (9,), "y"))
    assert (take(one, with_tokens=True), one.tokens) == ([TextDelta(0, "x", tuple(range(8)), (), None)], [*range(8)])


def test_the_limit_without_one_of_its_own_is_the_context_of_the_worker() -> None:
    one = sequence(max_tokens=None)
    one.place(one.submit_as(7, 0.0), "w", ("b", "digest"), 3, incarnation=1, now=0.0)
    assert one.push(Delta(7, (1, 2, 3), "x"))
    assert not one.push(Delta(7, (4,), "y"))


def test_only_a_worker_of_another_kind_than_the_first_one_continues_it_differently() -> None:
    one = sequence()
    for kind in ("a", "b"):
        one.place(one.submit_as(7, 0.0), "w", ("b", kind), 64, incarnation=1, now=0.0)
    assert (one.kind, one.continued) == (("b", "b"), False), "nothing was delivered before"
    one.push(Delta(7, (1,), "x"))
    one.place(one.submit_as(8, 0.0), "w", ("b", "b"), 64, incarnation=1, now=0.0)
    assert not one.continued
    one.place(one.submit_as(9, 0.0), "w", ("b", "c"), 64, incarnation=1, now=0.0)
    one.place(one.submit_as(10, 0.0), "w", ("b", "b"), 64, incarnation=1, now=0.0)
    assert (one.kind, one.continued) == (("b", "b"), True)


def test_an_end_is_taken_once_and_drops_the_prompt() -> None:
    one = sequence()
    one.push(Delta(1, (5,), "a"))
    assert take(one, with_tokens=True) == [TextDelta(0, "a", (5,), (), None)]
    one.finish(StopReason.LENGTH, Usage(1, 1))
    assert (one.ended, one.request.ended, one.submit.input) == (True, True, TokensInput(()))
    assert take(one, with_tokens=True) == [TextDelta(0, "", (), (), StopReason.LENGTH)]
    with pytest.raises(RuntimeError, match="ended twice"):
        one.cancel()


def test_the_attempts_of_a_sequence_are_kept_for_its_trace_within_a_bound() -> None:
    one = sequence()
    for number in range(MAX_REPLAYS + 3):
        one.place(one.submit_as(number, 0.0), "w", ("b", "a"), 64, incarnation=number, now=float(number))
        one.started(StartedStream(number), number + 0.25)
        one.push(Delta(number, (7,), "x"))
        one.last_at = number + 0.5
        one.leave(Cause.KILLED, "killed", number + 0.75)
    assert [attempt.incarnation for attempt in one.attempts] == [*range(MAX_REPLAYS), MAX_REPLAYS + 2]
    last = one.attempts[-1]
    at = float(MAX_REPLAYS + 2)
    assert (last.sent_at, last.first_at, last.last_at, last.lost_at) == (at, at + 0.25, at + 0.5, at + 0.75)
    assert (last.cause, last.resumed) == ("killed", MAX_REPLAYS + 2)
