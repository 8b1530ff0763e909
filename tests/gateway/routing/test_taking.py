"""The client's side of a request: output is taken in bounded portions, and given up when it takes too much memory."""

import gc
import sys
import weakref
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.errors import RequestError
from gateway.generation.answer_size import LOGPROB_BYTES, token_bytes
from gateway.generation.delta import StopReason, TextDelta
from gateway.routing.failure import RequestFailure
from gateway.routing.request_group import TAKE_BYTES, RequestGroup
from protocol.errors import ErrorCode
from protocol.events import Delta, Logprobs, Step, TokenLogprob
from tests.gateway.harness.world import World, failure, number

pytestmark = pytest.mark.anyio

ROOM = TAKE_BYTES // token_bytes(20)
"""Tokens with 20 log-probabilities that are taken at once."""


def report(token: int, top: int = 20) -> Logprobs:
    return Logprobs(TokenLogprob(token, -1.0, b"x"), tuple(TokenLogprob(each, -2.0, b"y") for each in range(top)))


def generate(world: World, group: RequestGroup, index: int, count: int) -> None:
    """So many steps of one sequence, whose texts are their numbers."""
    stream = number(group, index)
    for token in range(count):
        world["a"].say(Step((Delta(stream, (token,), f"{token} ", (report(token),)),)))


def taken(group: RequestGroup) -> list[TextDelta]:
    """The deltas of one take."""
    deltas = group.take()
    assert all(isinstance(delta, TextDelta) for delta in deltas)
    return [delta for delta in deltas if isinstance(delta, TextDelta)]


async def settled() -> None:
    """Let the callbacks run that were scheduled so far."""
    await anyio.lowlevel.checkpoint()


async def test_a_backlog_is_taken_in_portions_whose_texts_are_those_of_their_tokens() -> None:
    world = World("a")
    group = world.open(logprobs=20, max_tokens=400)
    generate(world, group, 0, 2 * ROOM + 3)
    world["a"].finish(number(group), "end")
    portions: list[TextDelta] = []
    while not portions or group.unread:
        (delta,) = taken(group)
        portions.append(delta)
        assert [each.sampled.token for each in delta.logprobs] == list(delta.tokens)
        assert delta.text.replace("end", "").split() == [str(token) for token in delta.tokens]
    assert [len(delta.tokens) for delta in portions] == [ROOM, ROOM, 3]
    assert [delta.stop for delta in portions] == [None, None, StopReason.END]
    assert group.take() == []


async def test_what_fills_one_portion_exactly_is_taken_once() -> None:
    world = World("a")
    group = world.open(logprobs=20, max_tokens=400, n=2)
    generate(world, group, 0, ROOM)
    generate(world, group, 1, 1)
    for index in range(2):
        world["a"].finish(number(group, index))
    first, second = taken(group), taken(group)
    assert [(delta.index, len(delta.tokens), delta.stop) for delta in first] == [(0, ROOM, StopReason.END)]
    assert [(delta.index, len(delta.tokens), delta.stop) for delta in second] == [(1, 1, StopReason.END)]
    assert not group.unread


async def test_a_client_that_left_something_does_not_wait_for_more() -> None:
    world = World("a")
    group = world.open(logprobs=20, max_tokens=400)
    generate(world, group, 0, ROOM + 1)
    group.take()
    assert group.unread
    assert await group.wait()
    group.take()
    assert not group.unread


async def test_the_tokens_of_a_step_may_come_before_its_text() -> None:
    world = World("a")
    group = world.open(logprobs=0, return_token_ids=True)
    room = group.room
    reports = tuple(report(token, 0) for token in range(100))
    group.room = 60
    world["a"].say(Step((Delta(number(group), tuple(range(100)), "text", reports),)))
    (first,), (second,) = taken(group), taken(group)
    assert (len(first.tokens), len(first.logprobs), first.text) == (60, 60, "")
    assert (len(second.tokens), len(second.logprobs), second.text) == (40, 40, "text")
    assert room == TAKE_BYTES // token_bytes(0)


async def test_a_streamed_answer_counts_until_it_is_taken() -> None:
    world = World("a")
    group = world.open(logprobs=20)
    generate(world, group, 0, 10)
    held = world.router.answers.held
    assert held > 10 * 21 * LOGPROB_BYTES
    group.take()
    assert 0 < world.router.answers.held < held / 20, "only the token ids, for a replay"
    group.close()
    assert world.router.answers.held == 0


async def test_a_whole_answer_counts_until_its_client_has_it() -> None:
    world = World("a")
    group = world.open(logprobs=20, stream=False)
    generate(world, group, 0, 10)
    held = world.router.answers.held
    world["a"].finish(number(group))
    assert [len(delta.tokens) for delta in group.take_all()] == [10]
    assert world.router.answers.held == held
    group.close()
    assert world.router.answers.held == 0


async def test_a_stream_whose_client_leaves_too_much_unread_is_ended() -> None:
    world = World("a", max_answer_bytes=1 << 20)
    group, other = world.open(logprobs=20, max_tokens=1000), world.open()
    generate(world, group, 0, 400)
    await settled()
    assert failure(group) is ErrorCode.OVERLOADED
    assert group.take() == []
    assert world["a"].cancels == [number(group)]
    assert not other.ended
    assert world.router.answers.held == 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"stream": False}, "max_tokens"),
        ({"echo": True}, "logprobs"),
        (
            {"prompt": ["x" * 2000] * 4, "n": 1, "prompt_logprobs": 20, "stream": False, "max_tokens": 1},
            "prompt_logprobs",
        ),
        ({}, None),
    ],
    ids=["whole", "stream with echo", "prompt", "stream"],
)
async def test_what_may_outgrow_the_bound_is_refused(options: dict[str, Any], field: str | None) -> None:
    world = World("a", max_answer_bytes=1 << 20)
    wanted: dict[str, Any] = {"prompt": "x" * 2000, "logprobs": 20, "max_tokens": 2000, "n": 4} | options
    if field is None:
        assert world.open(**wanted).failure is None
        return
    with pytest.raises(RequestError) as refused:
        world.open(**wanted)
    assert (refused.value.status, refused.value.field) == (400, field)


async def test_a_stream_that_its_dialect_keeps_is_refused_for_more_than_it_may_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.generation.answer_size.MAX_KEPT_LOGPROBS", 20)
    world = World("a")
    request = world.decoder.completion(
        b'{"model": "tiny", "prompt": "hi", "stream": true, "logprobs": 20, "max_tokens": 1}'
    ).request
    assert world.router.admission.open(request, "r").failure is None
    kept = replace(request, output=replace(request.output, kept=True))
    with pytest.raises(RequestError, match="log-probabilities of a stream"):
        world.router.admission.open(kept, "r")


async def test_a_whole_answer_that_outgrows_the_bound_is_ended_with_the_field_that_bounds_it() -> None:
    world = World("a", max_answer_bytes=1 << 20)
    group = world.open(logprobs=20, max_tokens=300, stream=False)
    stream = number(group)
    for _ in range(2):  # more text than tokens have
        world["a"].say(Step((Delta(stream, (1,), "x" * (1 << 19), (report(1),)),)))
    await settled()
    assert group.failure is not None
    assert (group.failure.code, group.failure.field) == (ErrorCode.INVALID, "max_tokens")


async def test_the_largest_answer_gives_way_when_all_together_take_too_much() -> None:
    world = World("a", max_answer_bytes=1 << 20, max_total_answer_bytes=2 << 20)
    groups = [world.open(logprobs=20, max_tokens=1000) for _ in range(3)]
    for group, count in zip(groups, (200, 310, 150), strict=True):
        generate(world, group, 0, count)
    generate(world, groups[2], 0, 60)
    await settled()
    assert [failure(group) for group in groups] == [None, ErrorCode.OVERLOADED, None]


async def test_a_finished_answer_that_is_being_sent_gives_way() -> None:
    world = World("a", max_answer_bytes=1 << 20, max_total_answer_bytes=1 << 20)
    sent = world.open(logprobs=20, max_tokens=300, stream=False)
    generate(world, sent, 0, 200)
    world["a"].finish(number(sent))
    ended: list[None] = []
    sent.on_give_way = lambda: ended.append(None)
    sent.take_all()
    other = world.open(logprobs=20, max_tokens=300)
    generate(world, other, 0, 180)
    await settled()
    assert ended == [None]
    assert failure(other) is None


async def test_a_closed_answer_is_freed_without_a_garbage_collection() -> None:
    world = World("a")
    group = world.open(n=2)
    freed = weakref.ref(group)
    gc.disable()
    try:
        group.close()
        await settled()
        del group
        assert freed() is None
    finally:
        gc.enable()


async def test_a_client_that_waits_learns_that_its_answer_gives_way() -> None:
    group = World("a").open()
    changed: list[bool] = []

    async def wait() -> None:
        changed.append(await group.wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await settled()
        group.give_way(RequestFailure(ErrorCode.OVERLOADED, "too large"))
    assert (changed, await group.wait()) == ([True], True)


async def test_a_stream_that_was_computed_and_not_read_fails_when_it_gives_way() -> None:
    world = World("a", max_answer_bytes=1 << 20, max_total_answer_bytes=1 << 20)
    unread = world.open(logprobs=20, max_tokens=300)
    generate(world, unread, 0, 200)
    world["a"].finish(number(unread))
    generate(world, world.open(logprobs=20, max_tokens=300), 0, 180)
    await settled()
    assert failure(unread) is ErrorCode.OVERLOADED
    assert unread.take() == []


async def test_a_request_that_failed_keeps_its_failure_when_it_gives_way() -> None:
    world = World("a", max_answer_bytes=1 << 20)
    group = world.open(logprobs=20, max_tokens=1000, n=2)
    generate(world, group, 1, 400)
    world["a"].fail(number(group), ErrorCode.INTERNAL)
    await settled()
    assert failure(group) is ErrorCode.INTERNAL
    assert group.take() == []


async def test_a_portion_takes_256_kib_of_memory() -> None:
    """`docs/adr/0053` explains it."""
    group = World("a").open(stream=True)
    assert 256 * 1024 - token_bytes(None) < group.room * token_bytes(None) <= 256 * 1024


@pytest.mark.parametrize("gives_way", [False, True], ids=["closed", "gives way"])
async def test_what_was_not_read_is_freed_in_several_turns_of_the_loop(
    gives_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.routing.request_group.FREED_AT_ONCE", 10)
    world = World("a")
    group = world.open(logprobs=20, n=2)
    reports = [report(token) for token in range(25)]
    before = sys.getrefcount(reports[0])
    for token in range(25):
        world["a"].report(number(group, token % 2), "x", reports[token])
    assert sys.getrefcount(reports[0]) > before
    if gives_way:
        group.give_way(RequestFailure(ErrorCode.OVERLOADED, "too large"))
    else:
        group.close()
    counts = []
    for _ in range(3):
        counts.append(sum(sys.getrefcount(reports[index]) == before for index in range(25)))
        await settled()
    assert counts == [10, 20, 25]


async def test_many_log_probabilities_are_freed_in_several_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.routing.request_group.FREED_AT_ONCE", 10)
    world = World("a")
    group = world.open(logprobs=20, stream=False)
    generate(world, group, 0, 25)
    world["a"].finish(number(group))
    reports = [report for delta in group.take_all() for report in delta.logprobs]
    before = sys.getrefcount(reports[0])
    group.close()
    counts = []
    for _ in range(3):
        counts.append(sum(sys.getrefcount(reports[index]) < before for index in range(25)))
        await settled()
    assert counts == [10, 20, 25]
