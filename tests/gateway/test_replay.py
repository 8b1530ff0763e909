"""What happens to sequences whose worker is lost, on the real router over workers that the test speaks for."""

import asyncio
import json
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors.worker import WorkerState
from gateway.errors import ApiError
from gateway.quarantine import REFUSED_AFTER, REMEMBERED_S
from gateway.requests import RequestDecoder
from gateway.router import DEADLINE_MARGIN_S, Router
from gateway.settings import GatewaySettings
from gateway.streams import Call
from gateway.suspicion import CLEARED_AFTER, MAX_PARDONS
from gateway.workers import FULL_S, SILENT_S, Role
from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.events import Usage
from protocol.request import TextInput
from tests.gateway.fakes import FakeWorker
from tests.gateway.virtual import BACKEND

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


class World:
    """A router, its workers, and short ways to say things."""

    def __init__(self, *names: str, slots: int = 4, **settings: Any) -> None:
        chosen = GatewaySettings(**settings)
        self.router = Router(chosen)
        self.decoder = RequestDecoder(chosen)
        self.workers = {name: FakeWorker(name, slots=slots).join(self.router) for name in names or ("a",)}

    def __getitem__(self, name: str) -> FakeWorker:
        return self.workers[name]

    def open(self, request: str = "r", **fields: Any) -> Call:
        body = {"model": "tiny", "prompt": "hi", "stream": True, "max_tokens": 100} | fields
        return self.router.open(self.decoder.completion(json.dumps(body).encode()), request)

    def replays(self) -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(self.router.metrics.render().decode())
        samples = [sample for family in families for sample in family.samples]
        return {
            (sample.labels["cause"], sample.labels["outcome"]): sample.value
            for sample in samples
            if sample.name == "baton_replays_total"
        }

    def gaps(self) -> float:
        families = text_string_to_metric_families(self.router.metrics.render().decode())
        samples = [sample for family in families for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == "baton_replay_gap_seconds_count")


def last(worker: FakeWorker) -> Submit:
    return worker.submits[-1]


def number(call: Call, index: int = 0) -> int:
    return call.streams[index].submit.stream


def failure(call: Call) -> ErrorCode | None:
    return call.failure.code if call.failure is not None else None


def clear(worker: FakeWorker, submit: Submit) -> None:
    """Let a suspect get past the point at which its worker died."""
    for token in range(CLEARED_AFTER):
        worker.token(submit.stream, "+", token)


async def test_a_lost_worker_s_stream_goes_on_with_another() -> None:
    world = World("a", "b")
    call, kept = world.open(), world.open()
    world["a"].token(number(call), "Hel", 5, 6)
    before = last(world["a"])
    world["a"].die()
    again = last(world["b"])
    assert not call.ended
    assert again.resume == (5, 6)
    assert (again.request, again.input, again.sampling) == (before.request, before.input, before.sampling)
    assert again.stream != before.stream, "what the dead one may still say is nobody's"
    world["b"].token(again.stream, "lo", 7)
    world["b"].finish(again.stream, "!", usage=Usage(2, 3))
    (piece,) = call.take(with_tokens=True)
    assert (piece.text, piece.tokens, piece.reason) == ("Hello!", (5, 6, 7), "stop")
    assert call.usage(1) == (2, 3, 0)
    assert not call.continued
    assert not kept.ended
    assert world.replays() == {("died", "resumed"): 1}
    assert world.gaps() == 1


async def test_a_queued_sequence_is_replayed_from_its_start() -> None:
    world = World(slots=1)
    first, queued = world.open(), world.open(prompt="b")
    world["a"].die()
    world["a"].come_back()
    world["a"].finish(last(world["a"]).stream, "all of the first")
    assert [submit.resume for submit in world["a"].submits[2:]] == [(), ()]
    assert last(world["a"]).input == TextInput("b")
    assert world.gaps() == 0, "nobody saw a gap"
    assert first.ended
    assert not queued.ended


async def test_without_another_worker_it_waits_for_the_restart() -> None:
    world = World()
    call = world.open()
    world["a"].token(number(call), "x", 5)
    world["a"].die()
    assert call.waiting
    assert world.router.waiting() == {"tiny": 1}
    world["a"].come_back()
    assert not call.waiting
    assert last(world["a"]).resume == (5,)
    world["a"].say_old(number(call))
    assert not call.ended


async def test_a_standby_takes_the_streams_of_the_one_that_it_replaces() -> None:
    world = World()
    standby = FakeWorker("s").join(world.router, Role.STANDBY)
    call = world.open()
    world["a"].token(number(call), "x", 5)
    world["a"].die()
    assert last(standby).resume == (5,)
    assert not call.waiting


@pytest.mark.parametrize("how", ["in time", "given up", "at once"])
async def test_where_no_worker_comes_the_stream_ends_typed(how: str) -> None:
    world = World(worker_wait_s=0 if how == "at once" else 60)
    call = world.open()
    world["a"].die()
    if how == "given up":
        world["a"].change(state=WorkerState.GIVEN_UP)
        assert call.ended
    else:
        await anyio.sleep(0.01 if how == "at once" else 59.9)
        assert call.ended == (how == "at once")
        await anyio.sleep(0.2)
    assert failure(call) is ErrorCode.LOST
    assert call.failure is not None
    assert "killed by signal 9" in call.failure.text
    assert world.replays() == {("died", "worker_lost"): 1}
    await world.router.idle()


async def test_its_deadline_goes_on_while_it_waits() -> None:
    world = World(request_timeout_s=10, worker_wait_s=60)
    call = world.open()
    await anyio.sleep(4)
    world["a"].die()
    await anyio.sleep(2)
    world["a"].come_back()
    assert last(world["a"]).limits.deadline_ms == 4000
    clear(world["a"], last(world["a"]))
    world["a"].die()
    await anyio.sleep(4 + DEADLINE_MARGIN_S)
    assert failure(call) is ErrorCode.DEADLINE
    world["a"].come_back()
    assert len(world["a"].submits) == 2, "an expired stream is not replayed"


async def test_a_cancelled_stream_is_not_replayed() -> None:
    world = World()
    gone, stays = world.open("gone", n=2), world.open("stays")
    world["a"].die()
    gone.cancel_nowait()
    assert not gone.waiting
    world["a"].come_back()
    assert [submit.request for submit in world["a"].submits[3:]] == ["stays"]
    assert world["a"].cancels == [], "the next incarnation knows nothing of them"
    stays.cancel_nowait()
    assert world["a"].cancels == [number(stays)]
    await world.router.idle()
    assert world.replays() == {("died", "cancelled"): 3}


async def test_each_choice_goes_on_for_itself() -> None:
    world = World("a", "b")
    call = world.open(n=3)
    first, second, third = (number(call, index) for index in range(3))
    world["a"].token(first, "A", 1)
    world["a"].token(second, "B", 2)
    world["a"].finish(third, "C")
    world["a"].die()
    world["a"].come_back()
    (one,) = world["b"].submits
    (other,) = world["a"].submits[3:]
    assert (one.resume, other.resume) == ((1,), (2,)), "two suspects, two workers"
    world["a"].finish(other.stream, "b")
    world["b"].finish(one.stream, "a")
    texts = {piece.index: piece.text for piece in call.take(with_tokens=False)}
    assert texts == {0: "Aa", 1: "Bb", 2: "C"}
    assert call.ended
    assert call.failure is None


async def test_an_unlike_worker_goes_on_and_it_is_said() -> None:
    world = World("a", "b")
    hello = world["b"].status.hello
    assert hello is not None
    world["b"].change(hello=type(hello)(1, "b", 1, 1, "tiny", "other", "none", 4, 64, "another digest"))
    fresh, begun = world.open(), world.open()
    assert (fresh.worker, begun.worker) == ("a", "b")
    world["b"].token(number(begun), "x", 5)
    world["b"].die()
    assert begun.worker == "a"
    world["a"].token(number(begun), "y", 6)
    assert begun.continued
    assert not fresh.continued
    assert world.replays() == {("died", "continued"): 1}


async def test_one_that_had_nothing_yet_is_not_called_continued() -> None:
    world = World("a", "b")
    hello = world["b"].status.hello
    assert hello is not None
    world["b"].change(hello=type(hello)(1, "b", 1, 1, "tiny", "other", "none", 4, 64, "another digest"))
    call = world.open()
    world["a"].die()
    world["b"].finish(number(call), "all of it")
    assert not call.continued


class TestSilence:
    """An idle worker whose process is suspended misses its beats, and is ended for it only later."""

    async def test_requests_go_to_the_one_that_beats(self) -> None:
        world, now = World("a", "b"), asyncio.get_running_loop().time()
        world["a"].change(last_frame=now)
        world["b"].change(last_frame=now + 1)
        await anyio.sleep(SILENT_S - 0.01)
        assert world.open().worker == "a"
        world.open().cancel_nowait()
        await anyio.sleep(0.01)
        assert [world.open().worker for _ in range(3)] == ["b", "b", "b"]
        await anyio.sleep(1)
        assert world.open().worker == "a", "where all are silent, the load decides"
        world["b"].change(last_frame=now + SILENT_S + 1)
        assert world.open().worker == "b"

    async def test_a_standby_that_beats_takes_the_place_of_one_that_does_not(self) -> None:
        world, now = World(), asyncio.get_running_loop().time()
        standby = FakeWorker("s").join(world.router, Role.STANDBY)
        world["a"].change(last_frame=now)
        standby.change(last_frame=now)
        await anyio.sleep(SILENT_S)
        assert world.open().worker == "a", "the standby is as silent"
        standby.change(last_frame=now + SILENT_S)
        assert world.open().worker == "s"


class TestSuspects:
    """The rule of `gateway.suspicion`, at work."""

    async def test_the_same_request_is_not_tried_a_third_time(self) -> None:
        world = World("a", "b", "c")
        call = world.open()
        world["a"].die()
        world["b"].die()
        assert failure(call) is ErrorCode.QUARANTINED
        assert world["c"].submits == []
        assert world.replays() == {("died", "lost_again"): 1, ("died", "quarantined"): 1}

    async def test_the_neighbours_of_a_poisonous_request_survive(self) -> None:
        """Whoever runs it dies; nobody else may come to harm."""
        world = World(slots=8)
        calls = [world.open(str(index)) for index in range(8)]
        poison, worker = calls[3], world["a"]
        for call in calls:
            worker.token(number(call), "x", 1)
        deaths = 0
        while any(not call.ended for call in calls):
            if not poison.ended and poison.streams[0].worker:
                deaths += 1
                worker.die()
                worker.come_back()
            else:
                for call in calls:
                    if not call.ended and call.streams[0].worker:
                        worker.token(number(call), "y", 2)
                        if len(call.streams[0].tokens) == 20:
                            worker.finish(number(call))
        assert deaths == 2
        assert failure(poison) is ErrorCode.QUARANTINED
        assert [call for call in calls if call.failure is not None] == [poison]

    async def test_the_deaths_by_a_culprit_are_pardoned_wherever_they_were(self) -> None:
        world = World("a", "b")
        world.open()
        world["a"].die()
        world["a"].come_back()
        assert (world["a"].pardoned, world["b"].pardoned) == ([], [])
        world["b"].die()
        assert (world["a"].pardoned, world["b"].pardoned) == ([1], [1])

    async def test_a_death_that_nobody_was_guilty_of_counts(self) -> None:
        world = World()
        call = world.open()
        world["a"].die()
        world["a"].come_back()
        clear(world["a"], last(world["a"]))
        world["a"].die()
        assert not call.ended
        assert world["a"].pardoned == []

    async def test_a_suspect_whose_client_leaves_takes_the_death_with_it(self) -> None:
        """Or a client that always leaves in time would use up the restarts."""
        world = World()
        for incarnation in (1, 2):
            call = world.open()
            world["a"].die()
            call.cancel_nowait()
            world["a"].come_back()
            assert world["a"].pardoned == list(range(1, incarnation + 1))

    async def test_a_worker_that_does_nothing_but_die_is_not_pardoned_for_ever(self) -> None:
        world = World()
        for index in range(MAX_PARDONS):
            world.open(prompt=f"{index}")
            for _ in range(2):
                world["a"].die()
                world["a"].come_back()
        assert world["a"].pardoned == list(range(1, MAX_PARDONS + 1))
        world["a"].finish(number(world.open(prompt="good")))
        bad = world.open(prompt="bad")
        world["a"].die()
        world["a"].come_back()
        world["a"].die()
        assert failure(bad) is ErrorCode.QUARANTINED
        assert len(world["a"].pardoned) == MAX_PARDONS + 2

    async def test_a_request_that_was_quarantined_twice_is_refused_at_once_for_a_while(self) -> None:
        world = World()
        for _ in range(REFUSED_AFTER):
            call = world.open()
            for _ in range(2):
                world["a"].die()
                world["a"].come_back()
            assert failure(call) is ErrorCode.QUARANTINED
        with pytest.raises(ApiError, match="not tried again") as refused:
            world.open(seed=7)
        assert (refused.value.status, refused.value.code) == (500, "quarantined")
        assert not world.open(prompt="another").ended
        await anyio.sleep(REMEMBERED_S)
        assert not world.open().ended

    async def test_suspects_run_apart_until_they_are_past_the_point(self) -> None:
        world = World()
        first, second = world.open("first"), world.open("second")
        world["a"].die()
        world["a"].come_back()
        assert [submit.request for submit in world["a"].submits[2:]] == ["first"]
        for _ in range(CLEARED_AFTER - 1):
            world["a"].token(number(first), "x", 1)
        assert second.waiting
        world["a"].token(number(first), "x", 1)
        assert last(world["a"]).request == "second"
        assert not second.waiting

    async def test_a_suspect_that_ends_makes_way_too(self) -> None:
        world = World()
        first, second = world.open("first"), world.open("second")
        world["a"].die()
        world["a"].come_back()
        world["a"].finish(number(first))
        assert last(world["a"]).request == "second"
        assert not second.ended

    async def test_a_suspect_that_was_cleared_starts_anew(self) -> None:
        world = World()
        call = world.open()
        for _ in range(5):
            world["a"].die()
            world["a"].come_back()
            clear(world["a"], last(world["a"]))
        assert not call.ended

    async def test_what_only_waited_for_a_slot_is_innocent(self) -> None:
        world = World(slots=1)
        runs, next_one, queued = world.open("runs"), world.open("next"), world.open("queued")
        world["a"].die()
        suspects = [call.streams[0].suspect for call in (runs, next_one, queued)]
        assert suspects == [True, True, False], "the next one may have got the slot, and nobody had heard"

    async def test_a_prompt_that_kills_is_found_behind_a_long_queue(self) -> None:
        """The worker dies as soon as it looks at it; eight others run or wait before it, and come to no harm."""
        world = World(slots=1)
        calls, worker = [world.open(str(index)) for index in range(8)], world["a"]
        worker.reach()
        poison = world.open("poison")
        deaths = 0
        while any(not call.ended for call in (*calls, poison)):
            if not poison.ended and poison.streams[0].worker:
                deaths += 1
                worker.die(number(poison) - 1)
                worker.come_back()
                continue
            worker.reach()
            for call in calls:
                if not call.ended and call.streams[0].worker:
                    worker.token(number(call), "y", 2)
                    if len(call.streams[0].tokens) == 20:
                        worker.finish(number(call))
        assert deaths == 2
        assert failure(poison) is ErrorCode.QUARANTINED
        assert [call for call in calls if call.failure is not None] == []

    async def test_a_suspect_is_not_given_to_a_worker_whose_slots_are_taken(self) -> None:
        world = World("a", "b", slots=1)
        call, other = world.open("suspect"), world.open("other")
        world["a"].die()
        assert call.waiting
        world["b"].finish(number(other))
        assert last(world["b"]).request == "suspect"

    async def test_the_choices_of_a_quarantined_request_are_not_tried(self) -> None:
        world = World("a", "b", "c")
        call = world.open(n=2)
        world["a"].die()
        world["b"].die()
        world["c"].die()
        assert failure(call) is ErrorCode.QUARANTINED
        tried = [len(world[name].submits) for name in "bc"]
        assert tried == [1, 1]
        call.cancel_nowait()
        await world.router.idle()

    async def test_a_failed_step_is_tried_once_more_and_apart(self) -> None:
        world = World()
        call = world.open()
        world["a"].token(number(call), "x", 1)
        world["a"].fail(number(call), ErrorCode.STEP)
        assert last(world["a"]).resume == (1,)
        assert not call.ended
        world["a"].fail(number(call), ErrorCode.STEP, "again")
        assert failure(call) is ErrorCode.STEP
        assert world.replays() == {("step_failed", "step_failed"): 1}

    async def test_a_failed_step_is_tried_elsewhere_first(self) -> None:
        world = World("a", "b")
        call, _ = world.open(), world.open()
        world["a"].fail(number(call), ErrorCode.STEP)
        assert last(world["b"]).request == "r"
        assert len(world["b"].submits) == 2


class TestLeaving:
    async def test_a_worker_that_leaves_accuses_nobody_and_gets_nothing_more(self) -> None:
        world = World("a", "b")
        first, second = world.open(n=2), world.open()
        world["a"].fail(number(first, 0), ErrorCode.DRAINING)
        world["a"].fail(number(first, 1), ErrorCode.DRAINING)
        assert [len(world[name].submits) for name in "ab"] == [2, 3]
        assert not any(stream.suspect for stream in (*first.streams, *second.streams))
        assert {world.open().worker for _ in range(5)} == {"b"}

    async def test_a_worker_that_fails_with_last_words_accuses_all_that_ran(self) -> None:
        """What it says of each is no reason to hand them on one by one: its loss is judged as a whole."""
        world = World("a", "b")
        first, second = world.open(n=2), world.open()
        for index in range(2):
            world["a"].fail(number(first, index), ErrorCode.LOST, "a defect")
        assert len(world["b"].submits) == 1
        assert {world.open().worker for _ in range(2)} == {"b"}, "it gets nothing more meanwhile"
        world["a"].die()
        assert [stream.suspect for stream in (*first.streams, *second.streams)] == [True, True, False]
        assert world.replays() == {}, "one has gone on, one waits for its turn"

    async def test_the_same_request_is_not_tried_a_third_time_whatever_the_workers_said(self) -> None:
        world = World("a", "b", "c")
        call = world.open()
        for name in "ab":
            world[name].fail(number(call), ErrorCode.LOST, "a defect")
            world[name].die()
        assert failure(call) is ErrorCode.QUARANTINED
        assert world["c"].submits == []

    async def test_a_worker_that_was_stopped_accuses_nobody(self) -> None:
        world = World("a", "b")
        call = world.open()
        world["a"].status = world["a"].status.__class__(**_but(world["a"].status, state=WorkerState.STOPPED))
        world.router.worker_lost("a", 1, "stopped")
        assert last(world["b"]).request == "r"
        assert not call.streams[0].suspect

    async def test_streams_are_moved_off_a_worker_that_lives(self) -> None:
        world = World("a", "b")
        call = world.open()
        world["a"].token(number(call), "x", 5)
        old = number(call)
        world.router.migrate("a")
        assert world["a"].cancels == [old]
        assert last(world["b"]).resume == (5,)
        world["a"].token(old, "late", 6)
        world["a"].say_cancelled(old)
        assert call.streams[0].tokens == [5]
        assert world.open().worker == "b", "it gets nothing new"
        world["b"].finish(number(call))
        assert world.replays() == {("moved", "resumed"): 1}
        world["a"].come_back()
        assert world.open().worker == "a"

    async def test_moved_streams_wait_where_there_is_nobody_else(self) -> None:
        world = World()
        call = world.open()
        world.router.migrate("a")
        assert call.waiting
        world["a"].come_back()
        assert not call.waiting


class TestBounds:
    async def test_a_worker_without_room_is_not_flooded(self) -> None:
        world = World("a", "b", max_streams_per_worker=64, max_waiting_streams=0)
        lost, kept = world.open(n=64), world.open(n=64)
        assert (lost.worker, kept.worker) == ("a", "b")
        world["a"].die()
        assert len(world["b"].submits) == 64
        world["b"].finish(number(kept))
        assert len(world["b"].submits) == 64, "a suspect wants a free slot"
        for index in range(1, 62):
            world["b"].finish(number(kept, index))
        assert len(world["b"].submits) == 65

    async def test_overloaded_on_one_is_tried_on_another(self) -> None:
        world = World("a", "b", "c")
        call = world.open()
        world["a"].die()
        assert call.worker == "b"
        world["b"].fail(number(call), ErrorCode.OVERLOADED)
        assert call.worker == "c"
        world["c"].fail(number(call), ErrorCode.OVERLOADED)
        assert call.waiting, "and then it waits"
        await anyio.sleep(FULL_S)
        assert not call.waiting

    async def test_overloaded_is_asked_again_when_something_ends_there(self) -> None:
        world = World("a", "b")
        call, other = world.open(), world.open()
        world["a"].die()
        world["b"].fail(number(call), ErrorCode.OVERLOADED)
        assert call.waiting
        world["b"].finish(number(other))
        assert not call.waiting

    async def test_a_newcomer_is_told_that_a_worker_is_overloaded(self) -> None:
        world = World()
        call = world.open()
        world["a"].fail(number(call), ErrorCode.OVERLOADED)
        assert failure(call) is ErrorCode.OVERLOADED

    async def test_a_newcomer_that_one_worker_has_no_room_for_is_given_to_another(self) -> None:
        world = World("a", "b", "c")
        call = world.open()
        assert call.worker == "a"
        world["a"].fail(number(call), ErrorCode.OVERLOADED)
        assert call.worker == "b"
        world["c"].full = True
        world["b"].fail(number(call), ErrorCode.OVERLOADED)
        assert call.waiting, "the link to the last one may have room soon"
        await anyio.sleep(FULL_S)
        assert not call.waiting

    async def test_a_newcomer_that_no_worker_has_room_for_is_told(self) -> None:
        world = World("a", "b", "c")
        refused = world.open()
        for name in "abc":
            assert not refused.ended
            world[name].fail(number(refused), ErrorCode.OVERLOADED)
        assert failure(refused) is ErrorCode.OVERLOADED
        assert world.replays() == {}
        assert not any(refused.streams[0] in seat.live.values() for seat in world.router.seats())

    async def test_a_full_link_is_tried_again(self) -> None:
        world = World("a", "b")
        call = world.open()
        world["b"].full = True
        world["a"].die()
        assert call.waiting
        world["b"].full = False
        await anyio.sleep(FULL_S)
        assert call.worker == "b"


class TestNewcomers:
    """Requests that come while their model has no worker."""

    async def test_they_wait_for_the_restart_behind_what_was_lost(self) -> None:
        world = World(slots=1)
        world.open("lost")
        world["a"].die()
        world["a"].status = world["a"].status.__class__(**_but(world["a"].status, hello=None, ready=None))
        call = world.open("new", n=2)
        assert call.waiting
        assert call.fingerprint is None
        world["a"].status = world["a"].status.__class__(**_but(world["a"].status, hello=FakeWorker("a").status.hello))
        world["a"].come_back()
        assert [submit.request for submit in world["a"].submits] == ["lost", "lost", "new", "new"]
        assert call.fingerprint == "fp_0123456789abcdef"

    async def test_they_are_bounded_at_the_edge(self) -> None:
        world = World(max_waiting_streams=3)
        world["a"].die()
        world.open(n=2)
        world.open()
        with pytest.raises(ApiError) as caught:
            world.open()
        assert (caught.value.status, caught.value.code) == (429, "overloaded")

    @pytest.mark.parametrize("how", ["no wait", "given up"])
    async def test_they_are_refused_where_none_is_waited_for(self, how: str) -> None:
        world = World(worker_wait_s=0 if how == "no wait" else 60)
        world["a"].die()
        if how == "given up":
            world["a"].change(state=WorkerState.GIVEN_UP)
        with pytest.raises(ApiError) as caught:
            world.open()
        assert (caught.value.status, caught.value.code) == (503, "unavailable")

    async def test_their_wait_ends_typed(self) -> None:
        world = World(worker_wait_s=5)
        world["a"].die()
        call = world.open()
        await anyio.sleep(5.1)
        assert failure(call) is ErrorCode.UNAVAILABLE
        assert world.replays() == {}

    async def test_the_end_of_the_gateway_ends_those_that_wait(self) -> None:
        world = World()
        lost = world.open()
        world["a"].die()
        new = world.open()
        world.router.fail_all("bye")
        assert (failure(lost), failure(new)) == (ErrorCode.DRAINING, ErrorCode.DRAINING)
        await world.router.idle()


async def test_a_waiting_call_wakes_an_eager_client_once() -> None:
    """So that it can begin to comment; nothing is there to take yet."""
    world = World()
    call = world.open()
    news = asyncio.ensure_future(call.wait())
    await asyncio.sleep(0)
    world["a"].die()
    assert await news is False
    assert call.waiting


def _but(status: Any, **changes: Any) -> dict[str, Any]:
    return {name: getattr(status, name) for name in status.__dataclass_fields__} | changes
