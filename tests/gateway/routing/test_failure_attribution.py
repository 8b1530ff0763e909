"""Who is blamed for the death of a worker."""

import itertools

import pytest

from gateway.body_budget import BodyBudget, HeldBody
from gateway.generation.request import OutputOptions
from gateway.routing.failure import Charge
from gateway.routing.failure_attribution import (
    CLEARED_AFTER,
    MAX_PARDONS,
    MAX_TRIES,
    Standing,
    accuse,
    blame,
    charge,
    cleared,
    may_run,
    put_down,
    suspect,
)
from gateway.routing.request_group import Call
from gateway.routing.sequence import Stream
from protocol.commands import Submit
from protocol.request import Limits, Sampling, TextInput

DEATH = Charge("w", (1, None))
KILL = Charge("w", (2, None), within=False)
STEP = Charge("w", (3, 7))


def streams(count: int) -> list[Stream]:
    call = Call("r", "m", OutputOptions(stream=True), HeldBody(BodyBudget(1, 1)), 1, lambda call: None)
    limits = Limits()
    return [
        Stream(Submit(number, "r", TextInput("x"), Sampling(), limits), 0, call, now=0.0) for number in range(count)
    ]


def suspects(of: list[Stream]) -> list[bool]:
    return [suspect(stream) for stream in of]


def test_all_that_ran_at_a_first_death_are_suspects_and_nobody_is_guilty() -> None:
    live = streams(5)
    assert blame(live, 2, 5, DEATH) == []
    assert suspects(live) == [True, True, True, True, False], "the last one waited for a slot, whatever we did not hear"


def test_a_suspect_that_ran_is_guilty_and_the_others_are_not_even_suspects() -> None:
    live = streams(3)
    charge(live[1], DEATH)
    assert blame(live, 3, 5, DEATH) == [live[1]]
    assert suspects(live) == [False, True, False]


def test_a_suspect_that_waited_for_a_slot_has_an_alibi() -> None:
    live = streams(3)
    charge(live[2], DEATH)
    assert blame(live, 1, 5, DEATH) == []
    assert suspects(live) == [True, True, True]


def test_a_worker_that_never_said_how_many_slots_it_has_ran_nothing() -> None:
    live = streams(2)
    assert blame(live, 0, 5, DEATH) == []
    assert suspects(live) == [False, False]


def test_what_had_no_prompt_yet_is_suspect_however_far_behind_it_waited() -> None:
    live = streams(6)
    assert blame(live, 1, 3, DEATH) == []
    assert suspects(live) == [True, True, False, False, True, True]


def test_what_had_no_prompt_yet_is_suspect_though_another_one_is_guilty() -> None:
    live = streams(4)
    charge(live[0], DEATH)
    assert blame(live, 1, 2, DEATH) == [live[0]]
    assert suspects(live) == [True, False, False, True]


def test_a_suspect_without_a_prompt_is_guilty() -> None:
    live = streams(4)
    charge(live[3], DEATH)
    assert blame(live, 1, 2, DEATH) == [live[3]]
    assert suspects(live) == [False, False, False, True]


def test_a_suspect_is_cleared_by_the_last_of_its_tokens_and_not_before() -> None:
    (stream,) = streams(1)
    charge(stream, DEATH)
    assert not cleared(stream, CLEARED_AFTER - 1)
    assert suspect(stream)
    assert cleared(stream, 1)
    assert not suspect(stream)
    charge(stream, DEATH)
    assert not cleared(stream, CLEARED_AFTER - 1), "what it got before does not count"


def test_a_suspect_runs_where_a_slot_is_free_and_no_other_suspect_is() -> None:
    one, two, three = streams(3)
    charge(one, DEATH)
    assert may_run(one, {2: two}, 2)
    assert not may_run(one, {2: two, 3: three}, 2)
    charge(two, DEATH)
    assert not may_run(one, {2: two}, 2)
    assert may_run(three, {1: one, 2: two}, 2), "the innocent may queue anywhere"


def test_a_death_from_outside_accuses_nobody() -> None:
    live = streams(3)
    assert blame(live, 2, 5, KILL) == []
    assert suspects(live) == [False] * 3
    assert [stream.charges for stream in live] == [(KILL,)] * 3, "but it is counted"
    assert all(may_run(stream, {9: live[0]}, 1) for stream in live), "they run with the others, as before"


def test_a_suspect_that_is_killed_from_outside_stays_what_it_is() -> None:
    live = streams(2)
    charge(live[0], DEATH)
    assert blame(live, 2, 5, KILL) == []
    assert suspects(live) == [True, False]
    assert blame(live, 2, 5, DEATH) == [live[0]]
    assert put_down(live[0]) == [DEATH, DEATH], "not the one from outside"


@pytest.mark.parametrize("last", [DEATH, KILL, STEP], ids=["died", "killed", "step"])
def test_nothing_is_tried_more_often_than_the_bound_wherever_the_deaths_came_from(last: Charge) -> None:
    culprit, other = streams(2)
    for tries in range(1, MAX_TRIES):
        assert not suspect(culprit), tries
        assert blame([culprit], 4, 5, KILL) == []
    assert suspect(culprit), "its last try is apart"
    guilty = [culprit] if accuse(culprit, last) else [] if last is STEP else blame([culprit, other], 4, 5, last)
    assert guilty == [culprit]
    assert not suspect(other)
    assert put_down(culprit) == [KILL] * (MAX_TRIES - 1) + [last], "somebody kills because of it"


def test_the_last_try_of_one_is_no_charge_against_the_others() -> None:
    live = streams(3)
    for _ in range(MAX_TRIES - 1):
        charge(live[1], KILL)
    assert blame(live, 3, 5, KILL) == [live[1]]
    assert [stream.charges for stream in (live[0], live[2])] == [(), ()]


def test_every_order_of_deaths_ends_at_the_second_from_within_or_at_the_bound() -> None:
    for deaths in itertools.product((DEATH, KILL), repeat=MAX_TRIES):
        (stream,) = streams(1)
        tried = next(number for number, death in enumerate(deaths, 1) if blame([stream], 1, 5, death))
        within = [number for number, death in enumerate(deaths, 1) if death is DEATH]
        assert tried == min([*within[1:2], MAX_TRIES])


def test_what_is_cleared_starts_anew_also_from_outside() -> None:
    (stream,) = streams(1)
    for _ in range(MAX_TRIES):
        for _ in range(MAX_TRIES - 1):
            assert blame([stream], 1, 5, KILL) == []
        assert cleared(stream, CLEARED_AFTER)
    assert stream.charges == ()


def test_a_failed_step_is_a_death_from_within() -> None:
    (stream,) = streams(1)
    assert not accuse(stream, STEP)
    assert suspect(stream)
    assert blame([stream], 1, 5, KILL) == []
    assert accuse(stream, STEP)


def test_one_that_leaves_answers_for_what_it_may_have_done_itself() -> None:
    (stream,) = streams(1)
    charge(stream, KILL)
    assert put_down(stream) == []
    charge(stream, DEATH)
    assert put_down(stream) == [DEATH]


def test_a_death_is_pardoned_once_and_no_more_than_so_many_in_a_row() -> None:
    standing = Standing()
    assert [standing.pardons(number) for number in (1, 1)] == [True, False]
    assert all(standing.pardons(number) for number in range(2, MAX_PARDONS + 1))
    assert not standing.pardons(MAX_PARDONS + 1), "it did nothing well meanwhile"
    standing.served()
    assert standing.pardons(MAX_PARDONS + 2)
    assert [standing.pardoned(MAX_PARDONS + number) for number in (1, 2)] == [False, True]
