"""Who is blamed for the death of a worker."""

from gateway.streams import Call, Stream
from gateway.suspicion import CLEARED_AFTER, MAX_PARDONS, Standing, blame, cleared, may_run, suspect
from protocol.commands import Submit
from protocol.request import Limits, Sampling, TextInput


def streams(count: int) -> list[Stream]:
    call = Call("r", "m", eager=True, release=lambda call: None)
    limits = Limits()
    return [
        Stream(Submit(number, "r", TextInput("x"), Sampling(), limits), 0, call, now=0.0) for number in range(count)
    ]


def suspects(of: list[Stream]) -> list[bool]:
    return [stream.suspect for stream in of]


def test_all_that_ran_at_a_first_death_are_suspects_and_nobody_is_guilty() -> None:
    live = streams(5)
    assert blame(live, 2, 5) == []
    assert suspects(live) == [True, True, True, True, False], "the last one waited for a slot, whatever we did not hear"


def test_a_suspect_that_ran_is_guilty_and_the_others_are_not_even_suspects() -> None:
    live = streams(3)
    suspect(live[1])
    assert blame(live, 3, 5) == [live[1]]
    assert suspects(live) == [False, True, False]


def test_a_suspect_that_waited_for_a_slot_has_an_alibi() -> None:
    live = streams(3)
    suspect(live[2])
    assert blame(live, 1, 5) == []
    assert suspects(live) == [True, True, True]


def test_a_worker_that_never_said_how_many_slots_it_has_ran_nothing() -> None:
    live = streams(2)
    assert blame(live, 0, 5) == []
    assert suspects(live) == [False, False]


def test_what_had_no_prompt_yet_is_suspect_however_far_behind_it_waited() -> None:
    live = streams(6)
    assert blame(live, 1, 3) == []
    assert suspects(live) == [True, True, False, False, True, True]


def test_what_had_no_prompt_yet_is_suspect_though_another_one_is_guilty() -> None:
    live = streams(4)
    suspect(live[0])
    assert blame(live, 1, 2) == [live[0]]
    assert suspects(live) == [True, False, False, True]


def test_a_suspect_without_a_prompt_is_guilty() -> None:
    live = streams(4)
    suspect(live[3])
    assert blame(live, 1, 2) == [live[3]]
    assert suspects(live) == [False, False, False, True]


def test_a_suspect_is_cleared_by_the_last_of_its_tokens_and_not_before() -> None:
    (stream,) = streams(1)
    suspect(stream)
    assert not cleared(stream, CLEARED_AFTER - 1)
    assert stream.suspect
    assert cleared(stream, 1)
    assert not stream.suspect
    suspect(stream)
    assert not cleared(stream, CLEARED_AFTER - 1), "what it got before does not count"


def test_a_suspect_runs_where_a_slot_is_free_and_no_other_suspect_is() -> None:
    one, two, three = streams(3)
    suspect(one)
    assert may_run(one, {2: two}, 2)
    assert not may_run(one, {2: two, 3: three}, 2)
    suspect(two)
    assert not may_run(one, {2: two}, 2)
    assert may_run(three, {1: one, 2: two}, 2), "the innocent may queue anywhere"


def test_a_death_is_pardoned_once_and_no_more_than_so_many_in_a_row() -> None:
    standing = Standing()
    assert [standing.pardons(number) for number in (1, 1)] == [True, False]
    assert all(standing.pardons(number) for number in range(2, MAX_PARDONS + 1))
    assert not standing.pardons(MAX_PARDONS + 1), "it did nothing well meanwhile"
    standing.served()
    assert standing.pardons(MAX_PARDONS + 2)
