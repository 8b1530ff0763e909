"""Sequences of a draining worker go to another one with their cache rows: the real router and the worker's engine."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from actors.supervision.worker import GraceEnded, WorkerState
from gateway.openai.decoding import RequestDecoder
from gateway.routing.placement import row_transfers
from gateway.routing.placement.row_transfers import LEAST_LEFT, MIN_ROWS, MIN_SPEED, RETRY_S, STAGES, STALL_S, WINDOW
from gateway.routing.request_group import RequestGroup
from gateway.routing.router import LAST_MOVES_S, Router
from gateway.routing.worker_handle import FULL_S
from gateway.settings import GatewaySettings
from protocol.commands import Command, ReadRows, Submit, WriteRows
from protocol.errors import ErrorCode
from protocol.events import Event, Failed, Rows, RowsWritten, StartedStream, Step
from tests.gateway.harness import virtual
from tests.gateway.harness.engines import LETTERS, Answer, EngineWorker, answer_of, undisturbed
from workers.engine.runner import Runner
from workers.scripted.runner import ROW_BYTES, ScriptedRunner

pytestmark = pytest.mark.anyio

PROMPT = "a long prompt, which is to be computed once: " * 8
PART = 16
"""Rows of one part in these tests."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual.BACKEND


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_transfers, "CHUNK_BYTES", PART * ROW_BYTES)


class Pair:
    """Two workers, the first of which gets the first request."""

    def __init__(self, *, slots: int = 4, runner: Callable[[], Runner] | None = None) -> None:
        self.settings = GatewaySettings()
        self.router = Router(self.settings)
        self.a, self.b = (EngineWorker(name, slots=slots, runner=runner) for name in "ab")
        self._runner = runner
        self.a.join(self.router)
        self.b.join(self.router)
        self.workers: list[EngineWorker] = [self.a, self.b]
        self.texts: dict[RequestGroup, str] = {}
        self.expected: dict[RequestGroup, Answer] = {}
        self.most_on_the_way = 0

    def open(self, prompt: str = PROMPT, key: bytes = b"", **fields: Any) -> RequestGroup:
        body = {"model": "tiny", "prompt": prompt, "stream": True, "max_tokens": 60, "ignore_eos": True, "seed": 7}
        request = RequestDecoder(self.settings).completion(json.dumps(body | fields).encode()).request
        group = self.router.admission.open(request, "r", key=key, checked=True)
        self.texts[group] = ""
        self.expected[group] = undisturbed(group.sequences[0].submit, self._runner)
        return group

    async def run(self, until: Callable[[], bool], most: int = 400, pause_s: float = 0.0) -> None:
        """Let the workers compute, in turns."""
        for _ in range(most):
            if until():
                return
            for worker in self.workers:
                worker.step()
            self.read()
            await asyncio.sleep(pause_s)
        raise AssertionError("it has not come to that")

    def read(self) -> None:
        for group in self.texts:
            self.texts[group] += "".join(getattr(delta, "text", "") for delta in group.take())

    async def run_to_the_end(self, pause_s: float = 0.0) -> None:
        await self.run(lambda: all(group.ended for group in self.texts), pause_s=pause_s)
        self.read()
        for group, expected in self.expected.items():
            assert group.failure is None
            assert answer_of(group.sequences[0], self.texts[group]) == expected

    def drain(self) -> None:
        self.a.change(state=WorkerState.DRAINING)

    def outcomes(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.router.metrics.render().decode())
        samples = [sample for family in families for sample in family.samples]
        return {each.labels["outcome"]: each.value for each in samples if each.name == "baton_row_transfers_total"}


def tokens(group: RequestGroup) -> int:
    return len(group.sequences[0].tokens)


async def begun(pair: Pair) -> RequestGroup:
    group = pair.open()
    await pair.run(lambda: tokens(group) >= 5)
    assert group.sequences[0].worker == "a"
    return group


async def test_a_sequence_goes_on_with_its_rows() -> None:
    pair = Pair()
    group = await begun(pair)
    pair.drain()
    await pair.run(lambda: group.sequences[0].worker == "b")
    assert tokens(group) < 60, "it was moved while it ran"
    (resubmitted,) = pair.b.submits
    assert list(resubmitted.resume) == group.sequences[0].tokens
    await pair.run_to_the_end()
    assert pair.outcomes() == {"moved": 1}
    usage = group.sequences[0].usage
    assert usage is not None
    assert usage.cached_tokens == 0, "the prompt was not cached when the request came"
    assert pair.b.engine.gauges().prefill_tokens <= 2 * WINDOW, (
        "only what was generated during the transfer is computed"
    )
    assert not pair.a.engine.gauges().slots_active


def stateful() -> Runner:
    """A runner whose recurrent state takes several parts, and of which rejected drafts could be taken back."""
    size = 5 * PART * ROW_BYTES - 3
    return ScriptedRunner(slots=4, alphabet=LETTERS, state_bytes=size, decode_rows=8, rollback_rows=4)


@pytest.mark.parametrize("part", [PART, 1000], ids=["several parts", "one part"])
async def test_the_recurrent_state_goes_after_the_rows(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_transfers, "CHUNK_BYTES", part * ROW_BYTES)
    pair = Pair(runner=stateful)
    group = await begun(pair)
    pair.drain()
    await pair.run(lambda: group.sequences[0].worker == "b")
    assert tokens(group) < 60, "it was moved while it ran"
    await pair.run_to_the_end()
    assert pair.outcomes() == {"moved": 1}
    assert pair.b.engine.gauges().prefill_tokens <= 2 * WINDOW


@pytest.mark.parametrize("change", [lambda data: data[::-1], lambda data: data[:-1]], ids=["damaged", "shortened"])
async def test_a_state_that_is_damaged_on_its_way_is_not_used(change: Callable[[bytes], bytes]) -> None:
    pair = Pair(runner=stateful)
    await begun(pair)
    say = pair.a.say

    def saying(event: Event, incarnation: int | None = None) -> None:
        if isinstance(event, Rows) and event.rows and not event.tokens:
            event = replace(event, rows=change(event.rows))
        say(event, incarnation)

    pair.a.say = saying  # type: ignore[method-assign]
    pair.drain()
    await pair.run_to_the_end()
    assert "moved" not in pair.outcomes()
    assert sum(pair.outcomes().values()) == row_transfers.ATTEMPTS


async def test_few_parts_are_on_their_way_at_once() -> None:
    pair = Pair()
    await begun(pair)
    open_questions: set[int] = set()
    most = 0
    for worker in pair.workers:
        send, say = worker.send_nowait, worker.say

        def sending(commands: list[Command], send: Any = send) -> None:
            nonlocal most
            open_questions.update(each.query for each in commands if isinstance(each, ReadRows | WriteRows))
            most = max(most, len(open_questions))
            send(commands)

        def saying(event: Event, incarnation: int | None = None, say: Any = say) -> None:
            if isinstance(event, Rows | RowsWritten):
                open_questions.discard(event.query)
            say(event, incarnation)

        worker.send_nowait, worker.say = sending, saying  # type: ignore[method-assign, assignment]
    pair.drain()
    await pair.run_to_the_end()
    assert pair.outcomes() == {"moved": 1}
    assert most == WINDOW, f"{len(PROMPT)} rows are more than {WINDOW} parts"
    assert not open_questions


async def test_all_sequences_of_a_worker_go_one_after_the_other() -> None:
    pair = Pair()
    pair.b.change(state=WorkerState.DRAINING)  # so that all begin on the first one
    groups = [pair.open(f"{number} {PROMPT}") for number in range(4)]
    pair.b.change(state=WorkerState.READY)
    await pair.run(lambda: all(tokens(group) >= 2 for group in groups))
    pair.drain()
    await pair.run(lambda: not pair.router.pool["a"].live)
    assert pair.outcomes() == {"moved": 4}
    await pair.run_to_the_end()


def break_rows(rows: Rows) -> Rows:
    return replace(rows, rows=bytes(len(rows.rows)))


def break_tokens(rows: Rows) -> Rows:
    return replace(rows, tokens=(rows.tokens[0] + 1, *rows.tokens[1:]))


def shorten(rows: Rows) -> Rows:
    return replace(rows, tokens=rows.tokens[:-1], rows=rows.rows[:-ROW_BYTES])


@pytest.mark.parametrize("damage", [break_rows, break_tokens, shorten])
async def test_damaged_rows_are_refused_by_the_worker_that_should_take_them(damage: Callable[[Rows], Rows]) -> None:
    pair = Pair()
    group = await begun(pair)
    say, parts = pair.a.say, 0

    def saying(event: Event, incarnation: int | None = None) -> None:
        nonlocal parts
        parts += isinstance(event, Rows)
        say(damage(event) if isinstance(event, Rows) and parts % 4 == 3 else event, incarnation)

    pair.a.say = saying  # type: ignore[method-assign]
    pair.drain()
    await pair.run_to_the_end()
    assert "moved" not in pair.outcomes()
    assert sum(pair.outcomes().values()) == row_transfers.ATTEMPTS
    assert group.sequences[0].worker == "a", "it ended where it was"


async def test_nothing_moves_between_workers_of_other_kinds_or_formats() -> None:
    pair = Pair()
    await begun(pair)
    ready = pair.b.status.ready
    assert ready is not None
    pair.b.change(ready=replace(ready, rows_format="another"))
    pair.drain()
    await pair.run_to_the_end()
    assert pair.outcomes() == {}
    pair = Pair()
    await begun(pair)
    hello = pair.b.status.hello
    assert hello is not None
    pair.b.change(hello=replace(hello, config_digest="another"))
    pair.drain()
    await pair.run_to_the_end()
    assert pair.outcomes() == {}
    assert not any(isinstance(each, ReadRows) for message in pair.a.sent for each in message)


@pytest.mark.parametrize("rows", [MIN_ROWS - 1, MIN_ROWS])
async def test_a_short_sequence_stays(rows: int) -> None:
    pair = Pair()
    group = pair.open("x" * (rows - 4))
    await pair.run(lambda: tokens(group) == 5)  # the last token has no row yet
    pair.drain()
    await pair.run_to_the_end()
    assert pair.outcomes() == ({"short": 1} if rows < MIN_ROWS else {"moved": 1})


@pytest.mark.parametrize("victim", ["a", "b"])
async def test_a_sequence_goes_on_after_a_death_in_the_middle(victim: str) -> None:
    pair = Pair()
    group = await begun(pair)
    pair.drain()
    await pair.run(lambda: any(isinstance(each, WriteRows) for message in pair.b.sent for each in message))
    worker = pair.a if victim == "a" else pair.b
    worker.die()
    assert group.sequences[0].worker == ("b" if victim == "a" else "a")
    worker.come_back()
    await pair.run_to_the_end()
    assert "moved" not in pair.outcomes() or victim == "b"


@pytest.mark.parametrize("cause", ["death", "client"])
async def test_rows_whose_state_does_not_follow_are_freed_at_once(cause: str) -> None:
    pair = Pair(runner=stateful)
    group = await begun(pair)
    pair.drain()
    await pair.run(lambda: pair.b.engine.gauges().retained_tokens > 0)
    if cause == "client":
        group.close()
        pair.texts.pop(group)
    else:
        pair.a.die()
    pair.b.answer()
    pair.a.answer()
    pair.b.answer()
    assert pair.b.engine.gauges().retained_tokens == 0


async def test_a_client_that_leaves_in_the_middle_leaves_nothing() -> None:
    pair = Pair()
    group = await begun(pair)
    pair.drain()
    await pair.run(lambda: any(isinstance(each, WriteRows) for message in pair.b.sent for each in message))
    group.close()
    del pair.texts[group], pair.expected[group]
    await pair.run(lambda: pair.a.idle and pair.b.idle)
    assert pair.outcomes() == {"ended": 1}
    assert pair.b.submits == []
    later = pair.open("another prompt")
    await pair.run_to_the_end()
    assert later.sequences[0].worker == "b"


@pytest.mark.parametrize("silent", ["a", "b"])
async def test_a_worker_that_does_not_answer_ends_the_transfer(silent: str) -> None:
    pair = Pair()
    await begun(pair)
    worker = pair.a if silent == "a" else pair.b
    say = worker.say

    def saying(event: Event, incarnation: int | None = None) -> None:
        if not isinstance(event, Rows | RowsWritten):
            say(event, incarnation)

    worker.say = saying  # type: ignore[method-assign]
    pair.drain()
    for each in pair.workers:
        each.answer()
    assert pair.outcomes() == {}
    await asyncio.sleep(STALL_S - 0.1)
    assert pair.outcomes() == {}
    await asyncio.sleep(0.2)
    assert pair.outcomes() == {"stalled": 1}
    asked = sum(len(message) for message in pair.a.sent)
    await pair.run_to_the_end()
    assert sum(len(message) for message in pair.a.sent) == asked, "it is asked nothing any more"


async def test_a_sequence_waits_for_a_slot_on_another_worker() -> None:
    pair = Pair(slots=1)
    first, second = pair.open(), pair.open("b " + PROMPT, max_tokens=20)
    await pair.run(lambda: tokens(first) >= 2 and tokens(second) >= 2)
    pair.drain()
    assert pair.outcomes() == {}
    await pair.run(lambda: second.ended)
    await asyncio.sleep(RETRY_S + 0.01)
    await pair.run(lambda: first.sequences[0].worker == "b")
    await pair.run_to_the_end()
    assert pair.outcomes() == {"moved": 1}


async def test_nothing_moves_while_rows_go_little_faster_than_they_are_generated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_transfers, "CHUNK_BYTES", ROW_BYTES)
    monkeypatch.setattr(row_transfers, "WINDOW", int(MIN_SPEED) - 1)
    pair = Pair()
    pair.b.change(state=WorkerState.DRAINING)  # so that both begin on the first one
    groups = [pair.open("x" * MIN_ROWS, max_tokens=300), pair.open(max_tokens=300)]
    pair.b.change(state=WorkerState.READY)
    await pair.run(lambda: all(tokens(group) >= 5 for group in groups), pause_s=1.0)
    pair.drain()
    await pair.run_to_the_end(pause_s=1.0)
    assert pair.outcomes() == {"moved": 1, "slow": 1}, "the first transfer has measured it"


async def test_a_sequence_that_has_not_begun_is_looked_at_later() -> None:
    pair = Pair()
    group = await begun(pair)
    pair.drain()
    await pair.run(lambda: group.sequences[0].worker == "b")
    pair.a.restart()
    pair.b.change(state=WorkerState.DRAINING)  # it has yet to begin with the sequence there
    await pair.run(lambda: group.sequences[0].worker == "a", pause_s=0.1)
    await pair.run_to_the_end()
    assert pair.outcomes() == {"moved": 2}


@pytest.mark.parametrize("late", [False, True])
async def test_the_end_of_the_grace_waits_for_rows_on_their_way(late: bool) -> None:
    pair = Pair()
    group = await begun(pair)
    pair.drain()
    pair.router.handle(GraceEnded("a", 1))
    assert group.sequences[0].worker == "a"
    if late:
        await asyncio.sleep(LAST_MOVES_S + 0.01)
        assert group.sequences[0].worker == "b", "it is recomputed"
    await pair.run_to_the_end()
    assert pair.outcomes() == ({} if late else {"moved": 1})


async def test_rows_serve_their_tenant_alone() -> None:
    pair = Pair()
    group = pair.open(key=b"one")
    await pair.run(lambda: tokens(group) >= 5)
    pair.drain()
    await pair.run(lambda: group.sequences[0].worker == "b")
    other = pair.open(key=b"two", max_tokens=4)
    started: list[StartedStream] = []
    say = pair.b.say

    def saying(event: Event, incarnation: int | None = None) -> None:
        if isinstance(event, Step):
            started.extend(event.started)
        say(event, incarnation)

    pair.b.say = saying  # type: ignore[method-assign]
    number = other.sequences[0].submit.stream
    await pair.run_to_the_end()
    (begun_other,) = [each for each in started if each.stream == number]
    assert begun_other.cached_tokens == 0


async def test_a_sequence_that_cannot_be_sent_ends_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    group = await begun(pair)
    send = pair.b.send_nowait

    def refuse(commands: Sequence[Command]) -> None:
        if any(isinstance(each, Submit) for each in commands):
            raise OverflowError("a bug")
        send(commands)

    monkeypatch.setattr(pair.b, "send_nowait", refuse)
    pair.drain()
    await pair.run(lambda: group.ended)
    assert group.failure is not None
    assert group.failure.code is ErrorCode.INTERNAL
    del pair.texts[group], pair.expected[group]
    monkeypatch.undo()
    later = pair.open("another prompt")
    await pair.run_to_the_end()
    assert later.sequences[0].worker == "b"
    assert pair.router.is_idle


async def test_a_worker_that_no_longer_drains_is_asked_nothing() -> None:
    pair = Pair(slots=1)
    first, second = pair.open(), pair.open("b " + PROMPT, max_tokens=20)
    await pair.run(lambda: tokens(first) >= 2 and tokens(second) >= 2)
    pair.drain()
    pair.a.change(state=WorkerState.BACKOFF)  # its end is reported next
    await pair.run(lambda: second.ended)
    await asyncio.sleep(RETRY_S + 0.01)
    assert pair.outcomes() == {}
    assert first.sequences[0].worker == "a"
    pair.a.change(state=WorkerState.READY)
    await pair.run_to_the_end()


async def test_another_notice_of_a_draining_worker_brings_no_more_attempts() -> None:
    pair = Pair()
    await begun(pair)
    say = pair.a.say
    pair.a.say = lambda event, incarnation=None: say(  # type: ignore[method-assign]
        break_rows(event) if isinstance(event, Rows) else event, incarnation
    )
    pair.drain()
    await pair.run(lambda: sum(pair.outcomes().values()) == row_transfers.ATTEMPTS)
    pair.drain()
    await pair.run_to_the_end()
    assert sum(pair.outcomes().values()) == row_transfers.ATTEMPTS


async def test_nothing_is_kept_of_a_worker_that_did_not_answer_and_is_gone() -> None:
    pair = Pair()
    await begun(pair)
    say = pair.a.say
    pair.a.say = lambda event, incarnation=None: (  # type: ignore[method-assign]
        None if isinstance(event, Rows) else say(event, incarnation)
    )
    pair.drain()
    await asyncio.sleep(STALL_S + 0.1)
    assert pair.outcomes() == {"stalled": 1}
    pair.a.die()
    await pair.run_to_the_end()
    assert not pair.router._transfers._stalled


async def test_rows_that_were_generated_meanwhile_go_after_the_others_until_few_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_transfers, "WINDOW", 2)
    pair = Pair()
    group = pair.open(PROMPT * 4, max_tokens=300)
    await pair.run(lambda: tokens(group) >= 5)
    pair.drain()
    await pair.run(lambda: group.sequences[0].worker == "b")
    assert tokens(group) - 5 > 3 * LEAST_LEFT, "so many steps the rows of the prompt took"
    await pair.run_to_the_end()
    assert pair.outcomes() == {"moved": 1}
    assert pair.b.engine.gauges().prefill_tokens <= LEAST_LEFT + 2, "the others were transferred"


async def test_the_rows_of_a_sequence_that_are_generated_as_fast_as_they_go_are_not_followed_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_transfers, "LEAST_LEFT", 1)
    pair = Pair()
    group = pair.open(PROMPT, max_tokens=300)
    await pair.run(lambda: tokens(group) >= 5)
    asked = 0
    send = pair.a.send_nowait

    def sending(commands: Sequence[Command]) -> None:
        nonlocal asked
        asked += sum(isinstance(each, ReadRows) for each in commands)
        send(commands)

    monkeypatch.setattr(pair.a, "send_nowait", sending)
    pair.drain()
    await pair.run(lambda: group.sequences[0].worker == "b")
    assert asked == -(-(len(PROMPT) + 5) // PART) + STAGES
    await pair.run_to_the_end()


async def test_a_sequence_that_finds_no_room_where_its_rows_are_waits_for_a_worker() -> None:
    pair = Pair()
    group = await begun(pair)
    pair.drain()
    await pair.run(lambda: group.sequences[0].worker == "b")
    number = group.sequences[0].submit.stream
    pair.b.forget(number)
    pair.b.say(Failed(number, ErrorCode.OVERLOADED, "other gateways have taken the slot meanwhile"))
    assert group.failure is None
    await asyncio.sleep(FULL_S)
    await pair.run_to_the_end()
    assert group.sequences[0].worker == "b"
