"""Places of those who watch: fair among clients, however many connections one of them opens."""

import pytest

from gateway.admin.watchers import MAX_WATCHERS, Watcher, Watchers

pytestmark = pytest.mark.anyio  # their events belong to a loop


def enter(watchers: Watchers, client: str) -> Watcher:
    found = watchers.enter(client)
    assert found is not None
    return found


async def test_all_places_are_for_one_client_while_there_is_no_other() -> None:
    watchers = Watchers()
    mine = [enter(watchers, "a") for _ in range(MAX_WATCHERS)]
    assert not any(each.replaced.is_set() for each in mine)


async def test_a_further_connection_of_a_client_takes_the_place_of_its_oldest() -> None:
    watchers = Watchers()
    mine = [enter(watchers, "a") for _ in range(MAX_WATCHERS + 1)]
    assert [each.replaced.is_set() for each in mine] == [True] + [False] * MAX_WATCHERS


@pytest.mark.parametrize(("held", "gives_way"), [(0, "greedy"), (7, "greedy"), (8, "mine")])
async def test_another_client_gives_way_if_it_has_two_more(held: int, gives_way: str) -> None:
    watchers = Watchers()
    every = [enter(watchers, "mine") for _ in range(held)]
    every += [enter(watchers, "greedy") for _ in range(MAX_WATCHERS - held)]
    enter(watchers, "mine")
    (replaced,) = [each for each in every if each.replaced.is_set()]
    assert replaced is next(each for each in every if each.client == gives_way)


async def test_nobody_gives_way_if_each_place_is_of_another_client() -> None:
    watchers = Watchers()
    every = [enter(watchers, f"client {number}") for number in range(MAX_WATCHERS)]
    assert watchers.enter("one more") is None
    watchers.leave(every[3])
    enter(watchers, "one more")
    assert not any(each.replaced.is_set() for each in every)


async def test_a_greedy_client_leaves_a_place_to_each_other_one() -> None:
    watchers = Watchers()
    for _ in range(3 * MAX_WATCHERS):
        enter(watchers, "greedy")
    others = [enter(watchers, f"client {number}") for number in range(MAX_WATCHERS - 1)]
    for _ in range(3 * MAX_WATCHERS):
        enter(watchers, "greedy")
    assert not any(each.replaced.is_set() for each in others)


async def test_one_who_was_replaced_has_no_place_to_release() -> None:
    watchers = Watchers()
    first, *rest = [enter(watchers, "a") for _ in range(MAX_WATCHERS + 1)]
    watchers.leave(first)
    enter(watchers, "a")
    assert rest[0].replaced.is_set()
