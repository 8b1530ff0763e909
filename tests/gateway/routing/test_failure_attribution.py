"""Attribution of the death of a worker to a sequence."""

import itertools

import pytest
from msgspec import structs

from gateway.body_budget import BodyBudget, HeldBody
from gateway.generation.request import OutputOptions
from gateway.routing.failure import WorkerFailure
from gateway.routing.failure_attribution import (
    CLEARED_AFTER,
    MAX_EXEMPT,
    MAX_TRIES,
    Exemptions,
    attribute_death,
    attribute_step,
    attributed_failures,
    cleared,
    may_run,
    record,
    suspect,
)
from gateway.routing.request_group import RequestGroup
from gateway.routing.sequence import LiveSequence
from protocol.bounds import MAX_OVERTAKEN
from protocol.commands import Submit
from protocol.request import Grammar, Limits, Sampling, TextInput

DEATH = WorkerFailure("w", (1, None))
KILL = WorkerFailure("w", (2, None), within=False)
STEP = WorkerFailure("w", (3, 7))


def sequences(count: int) -> list[LiveSequence]:
    group = RequestGroup("r", "m", OutputOptions(stream=True), HeldBody(BodyBudget(1, 1)), 1, lambda group: None)
    limits = Limits()
    return [
        LiveSequence(Submit(number, "r", TextInput("x"), Sampling(), limits), 0, group, now=0.0)
        for number in range(count)
    ]


def suspects(of: list[LiveSequence]) -> list[bool]:
    return [suspect(sequence) for sequence in of]


def test_all_that_ran_at_a_first_death_are_suspects_and_none_is_the_cause() -> None:
    live = sequences(5)
    assert attribute_death(live, 2, 5, DEATH) == []
    assert suspects(live) == [True, True, True, True, False], (
        "the last one waited for a slot, whatever frames were lost"
    )


@pytest.mark.parametrize(("grammars", "ran"), [(1, 5), (MAX_OVERTAKEN, 8), (6, 8)])
def test_sequences_that_were_overtaken_leave_room_for_others_that_ran(grammars: int, ran: int) -> None:
    """The first ones may wait for their grammar, or behind those that came after them meanwhile."""
    live = sequences(12)
    for sequence in live[:grammars]:
        sequence.submit = structs.replace(sequence.submit, grammar=Grammar("json_object"))
    assert attribute_death(live, 2, 12, DEATH) == []
    assert suspects(live) == [number < ran for number in range(12)]


def test_a_suspect_that_ran_is_the_cause_and_the_others_stay_clear() -> None:
    live = sequences(3)
    record(live[1], DEATH)
    assert attribute_death(live, 3, 5, DEATH) == [live[1]]
    assert suspects(live) == [False, True, False]


def test_a_suspect_that_waited_for_a_slot_is_not_the_cause() -> None:
    live = sequences(3)
    record(live[2], DEATH)
    assert attribute_death(live, 1, 5, DEATH) == []
    assert suspects(live) == [True, True, True]


def test_a_worker_that_never_said_how_many_slots_it_has_ran_nothing() -> None:
    live = sequences(2)
    assert attribute_death(live, 0, 5, DEATH) == []
    assert suspects(live) == [False, False]


def test_what_had_no_prompt_yet_is_suspect_however_far_behind_it_waited() -> None:
    live = sequences(6)
    assert attribute_death(live, 1, 3, DEATH) == []
    assert suspects(live) == [True, True, False, False, True, True]


def test_what_had_no_prompt_yet_is_suspect_though_another_one_is_the_cause() -> None:
    live = sequences(4)
    record(live[0], DEATH)
    assert attribute_death(live, 1, 2, DEATH) == [live[0]]
    assert suspects(live) == [True, False, False, True]


def test_a_suspect_without_a_prompt_is_the_cause() -> None:
    live = sequences(4)
    record(live[3], DEATH)
    assert attribute_death(live, 1, 2, DEATH) == [live[3]]
    assert suspects(live) == [False, False, False, True]


def test_a_suspect_is_cleared_by_the_last_of_its_tokens_and_not_before() -> None:
    (sequence,) = sequences(1)
    record(sequence, DEATH)
    assert not cleared(sequence, CLEARED_AFTER - 1)
    assert suspect(sequence)
    assert cleared(sequence, 1)
    assert not suspect(sequence)
    record(sequence, DEATH)
    assert not cleared(sequence, CLEARED_AFTER - 1), "what it got before does not count"


def test_a_suspect_runs_where_a_slot_is_free_and_no_other_suspect_is() -> None:
    one, two, three = sequences(3)
    record(one, DEATH)
    assert may_run(one, {2: two}, 2)
    assert not may_run(one, {2: two, 3: three}, 2)
    record(two, DEATH)
    assert not may_run(one, {2: two}, 2)
    assert may_run(three, {1: one, 2: two}, 2), "others may queue anywhere"


def test_a_death_from_outside_makes_no_suspect() -> None:
    live = sequences(3)
    assert attribute_death(live, 2, 5, KILL) == []
    assert suspects(live) == [False] * 3
    assert [sequence.failures for sequence in live] == [(KILL,)] * 3, "but it is counted"
    assert all(may_run(sequence, {9: live[0]}, 1) for sequence in live), "they run with the others, as before"


def test_a_suspect_that_is_killed_from_outside_stays_what_it_is() -> None:
    live = sequences(2)
    record(live[0], DEATH)
    assert attribute_death(live, 2, 5, KILL) == []
    assert suspects(live) == [True, False]
    assert attribute_death(live, 2, 5, DEATH) == [live[0]]
    assert attributed_failures(live[0]) == [DEATH, DEATH], "not the one from outside"


@pytest.mark.parametrize("last", [DEATH, KILL, STEP], ids=["died", "killed", "step"])
def test_nothing_is_tried_more_often_than_the_bound_wherever_the_deaths_came_from(last: WorkerFailure) -> None:
    culprit, other = sequences(2)
    for tries in range(1, MAX_TRIES):
        assert not suspect(culprit), tries
        assert attribute_death([culprit], 4, 5, KILL) == []
    assert suspect(culprit), "its last try is apart"
    attributed = (
        [culprit]
        if attribute_step(culprit, last)
        else []
        if last is STEP
        else attribute_death([culprit, other], 4, 5, last)
    )
    assert attributed == [culprit]
    assert not suspect(other)
    assert attributed_failures(culprit) == [KILL] * (MAX_TRIES - 1) + [last], "somebody kills because of it"


def test_the_last_try_of_one_is_not_recorded_with_the_others() -> None:
    live = sequences(3)
    for _ in range(MAX_TRIES - 1):
        record(live[1], KILL)
    assert attribute_death(live, 3, 5, KILL) == [live[1]]
    assert [sequence.failures for sequence in (live[0], live[2])] == [(), ()]


def test_every_order_of_deaths_ends_at_the_second_from_within_or_at_the_bound() -> None:
    for deaths in itertools.product((DEATH, KILL), repeat=MAX_TRIES):
        (sequence,) = sequences(1)
        tried = next(number for number, death in enumerate(deaths, 1) if attribute_death([sequence], 1, 5, death))
        within = [number for number, death in enumerate(deaths, 1) if death is DEATH]
        assert tried == min([*within[1:2], MAX_TRIES])


def test_what_is_cleared_starts_anew_also_from_outside() -> None:
    (sequence,) = sequences(1)
    for _ in range(MAX_TRIES):
        for _ in range(MAX_TRIES - 1):
            assert attribute_death([sequence], 1, 5, KILL) == []
        assert cleared(sequence, CLEARED_AFTER)
    assert sequence.failures == ()


def test_a_failed_step_is_a_death_from_within() -> None:
    (sequence,) = sequences(1)
    assert not attribute_step(sequence, STEP)
    assert suspect(sequence)
    assert attribute_death([sequence], 1, 5, KILL) == []
    assert attribute_step(sequence, STEP)


def test_what_a_sequence_may_have_caused_is_attributed_when_it_ends() -> None:
    (sequence,) = sequences(1)
    record(sequence, KILL)
    assert attributed_failures(sequence) == []
    record(sequence, DEATH)
    assert attributed_failures(sequence) == [DEATH]


def test_a_death_is_exempted_once_and_no_more_than_so_many_in_a_row() -> None:
    exemptions = Exemptions()
    assert [exemptions.add(number) for number in (1, 1)] == [True, False]
    assert all(exemptions.add(number) for number in range(2, MAX_EXEMPT + 1))
    assert not exemptions.add(MAX_EXEMPT + 1), "nothing succeeded meanwhile"
    exemptions.clear()
    assert exemptions.add(MAX_EXEMPT + 2)
    assert [MAX_EXEMPT + number in exemptions for number in (1, 2)] == [False, True]
