"""The queue of waiting sequences, beside a model that sorts all of them for each question."""

import math
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.scheduling import LEVELS, NORMAL, Urgency
from workers.engine.request import EngineRequest
from workers.engine.scheduling.preemption import OVERDUE, PATIENCE_S
from workers.engine.scheduling.slot_queue import SlotQueue
from workers.engine.sequence import EngineSequence


def waiting(stream: int, *, tenant: str = "", urgency: Urgency = NORMAL, **fields: Any) -> EngineSequence:
    queue_s = fields.pop("queue_s", math.inf)
    request = EngineRequest(stream, (1,), tenant=tenant, queue_s=queue_s, urgency=urgency)
    values = {"number": stream, "submitted_at": 0.0, "rank": 0.0} | fields
    rank = values.pop("rank")
    sequence = EngineSequence(request=request, tokens=[1], prefill_length=1, chunk_ends=(1,), max_length=9, **values)
    sequence.rank = rank
    return sequence


def taken(queue: SlotQueue, now: float = 0.0) -> list[int]:
    """Take all, in turn."""
    streams = []
    while queue:
        sequence = queue.next(now)
        queue.take(sequence)
        streams.append(sequence.request.stream)
    return streams


class Model:
    """The rules, in the plainest words: places and sequences apart, which are sorted for each question."""

    def __init__(self) -> None:
        self.held: list[EngineSequence] = []

    def level(self, each: EngineSequence, now: float) -> int:
        return OVERDUE if now - each.submitted_at >= PATIENCE_S else each.request.urgency.level

    def place(self, each: EngineSequence) -> tuple[float, int]:
        return each.rank, each.number

    def next(self, now: float) -> EngineSequence:
        first = min(self.held, key=lambda each: (self.level(each, now), self.place(each)))
        return min(self.mine(first, now), key=lambda each: (each.request.urgency.priority, self.place(each)))

    def mine(self, one: EngineSequence, now: float) -> list[EngineSequence]:
        return [
            each
            for each in self.held
            if (self.level(each, now), each.request.tenant) == (self.level(one, now), one.request.tenant)
        ]

    def places_after(self, sequence: EngineSequence, now: float) -> dict[int, tuple[float, int]]:
        """The places of all after `sequence` has taken the first one of its client."""
        mine = sorted(self.mine(sequence, now), key=self.place)
        order = [sequence, *(each for each in mine if each is not sequence)]
        moved = {each.request.stream: self.place(before) for each, before in zip(order, mine, strict=True)}
        return {each.request.stream: self.place(each) for each in self.held} | moved


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_it_answers_as_the_model_does(data: st.DataObject) -> None:
    queue, model, streams, now = SlotQueue(), Model(), count(), 0.0
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.sampled_from([0.0, 1.0, 25.0]))
        step = data.draw(st.sampled_from(["add", "add", "add", "remove", "take", "take"]))
        if step == "add":
            sequence = waiting(
                next(streams),
                tenant=data.draw(st.sampled_from("ab")),
                urgency=Urgency(data.draw(st.sampled_from(list(LEVELS.values()))), data.draw(st.integers(-1, 1))),
                submitted_at=now,
                rank=data.draw(st.sampled_from([0.0, now, now + 30.0])),
                queue_s=data.draw(st.sampled_from([math.inf, 30.0, 90.0])),
            )
            queue.add(sequence, now)
            model.held.append(sequence)
        elif step == "remove" and model.held:
            gone = model.held.pop(data.draw(st.integers(0, len(model.held) - 1)))
            assert queue.remove(gone.request.stream) is gone
        elif step == "take" and model.held:
            sequence = model.next(now)
            assert queue.next(now) is sequence
            places = model.places_after(sequence, now)
            queue.take(sequence)
            assert {each.request.stream: model.place(each) for each in model.held} == places
            model.held.remove(sequence)
        assert len(queue) == len(model.held)
        late = {each.request.stream for each in model.held if now - each.submitted_at >= each.request.queue_s}
        assert {each.request.stream for each in queue.expired(now)} == late
    assert taken(queue, now) == in_turn(model, now)


def in_turn(model: Model, now: float) -> list[int]:
    streams = []
    while model.held:
        sequence = model.next(now)
        places = model.places_after(sequence, now)
        for each in model.held:
            each.rank, each.number = places[each.request.stream]
        model.held.remove(sequence)
        streams.append(sequence.request.stream)
    return streams


def test_urgent_requests_of_a_client_use_up_the_places_of_those_that_they_overtake() -> None:
    """With ranks as well: an old short request that its client overtakes again and again gives it one turn, not each
    turn before another client."""
    queue = SlotQueue()
    queue.add(waiting(0, tenant="a", rank=0.0, urgency=Urgency(priority=5)), 0.0)
    queue.add(waiting(1, tenant="b", rank=1.0), 0.0)
    queue.add(waiting(2, tenant="a", rank=2.0), 0.0)
    queue.add(waiting(3, tenant="a", rank=3.0), 0.0)
    assert taken(queue) == [2, 1, 3, 0]


@pytest.mark.parametrize(("now", "first"), [(PATIENCE_S - 0.001, 1), (PATIENCE_S, 0)])
def test_an_overdue_sequence_comes_first_from_its_time_on(now: float, first: int) -> None:
    queue = SlotQueue()
    queue.add(waiting(0, urgency=Urgency(LEVELS["low"])), 0.0)
    queue.add(waiting(1, urgency=Urgency(LEVELS["high"]), submitted_at=1.0), 1.0)
    assert queue.next(now).request.stream == first


def test_what_has_started_does_not_expire() -> None:
    queue = SlotQueue()
    queue.add(waiting(0, queue_s=5.0, started=True), 0.0)
    queue.add(waiting(1, queue_s=5.0), 0.0)
    assert [each.request.stream for each in queue.expired(5.0)] == [1]
    assert queue.expired(4.999) == []


def test_an_empty_queue_has_no_next_one() -> None:
    queue = SlotQueue()
    queue.add(waiting(0), 0.0)
    assert queue.remove(0) is not None
    assert queue.remove(0) is None
    assert 0 not in queue
    with pytest.raises(IndexError):
        queue.next(0.0)
