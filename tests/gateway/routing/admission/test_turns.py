"""The order of turns, the places of clients in a full queue, and `Retry-After`."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.body_budget import BodyBudget, HeldBody
from gateway.generation.request import OutputOptions
from gateway.routing.admission.fair_shares import MAX_IDLE
from gateway.routing.admission.terms import AdmissionTerms, prompt_tokens
from gateway.routing.admission.turns import Turns
from gateway.routing.failure import RequestFailure
from gateway.routing.placement.charges import MAX_RETRY_AFTER_S
from gateway.routing.placement.wait_queue import WaitQueue
from gateway.routing.request_group import RequestGroup
from gateway.routing.sequence import LiveSequence
from protocol.commands import Submit
from protocol.errors import ErrorCode
from protocol.request import ChatInput, InfillInput, Input, Limits, Message, Sampling, TextInput, TokensInput, ToolCall
from tests.gateway.harness.virtual import BACKEND, VirtualLoop
from tests.gateway.harness.world import World

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def group(count: int = 1) -> RequestGroup:
    return RequestGroup("r", "m", OutputOptions(), HeldBody(BodyBudget(1, 1)), count, lambda group: None)


def sequence(order: int, client: str = "", of: RequestGroup | None = None, **terms: Any) -> LiveSequence:
    submit = Submit(order, "r", TextInput("x"), Sampling(), Limits())
    return LiveSequence(submit, 0, of or group(), now=float(order), terms=AdmissionTerms(client, **terms))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def turns(clock: Clock | None = None, weight: float = 1.0) -> Turns:
    return Turns("fifo", lambda client: weight if client == "heavy" else 1.0, clock or Clock())


def served(one: Turns, cost: float = 1.0) -> list[int]:
    """Send all in turn, and charge each."""
    order = []
    for each in one.in_turn():
        one.remove(each, sent=True)
        if not each.had_turn:
            one.shares.charge(each.terms.client, cost)
        order.append(each.order)
    return order


async def test_clients_alternate_whoever_came_first() -> None:
    one = turns()
    for order, client in enumerate("aaaabb"):
        one.add(sequence(order, client))
    assert served(one) == [0, 4, 1, 5, 2, 3]
    assert len(one) == 0


async def test_those_that_had_their_turn_come_first() -> None:
    one = turns()
    had = sequence(9, "a")
    had.kind = ("scripted", "x")
    for each in (sequence(1, "a"), sequence(2, "b"), had):
        one.add(each)
    assert [each.order for each in one] == [1, 2, 9]
    assert served(one) == [9, 1, 2]


async def test_the_rest_of_a_failed_request_does_not_hold_up_the_others() -> None:
    one = turns()
    failed, fine = sequence(1, "a"), sequence(2, "b")
    for each in (failed, fine):
        one.add(each)
    failed.request.failure = RequestFailure(ErrorCode.INTERNAL, "no")
    assert served(one) == [2]
    assert list(one) == [failed]
    one.remove(failed, sent=False)
    assert one.held() == {}


async def test_turns_end_with_one_that_is_not_sent() -> None:
    one = turns()
    one.add(sequence(1))
    one.add(sequence(2))
    assert [each.order for each in one.in_turn()] == [1]


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "heavy"]), st.booleans()), max_size=60))
@settings(deadline=None)
def test_each_sequence_is_there_until_it_is_removed_once(added: list[tuple[str, bool]]) -> None:
    one, there = turns(weight=2.0), dict[int, LiveSequence]()
    for order, (client, leaves) in enumerate(added):
        there[order] = sequence(order, client)
        one.add(there[order])
        if leaves:
            chosen = next(one.in_turn())
            assert there.pop(chosen.order) is chosen
            one.remove(chosen, sent=True)
            with pytest.raises(KeyError):
                one.remove(chosen, sent=True)
        assert sum(one.held().values()) == len(one) == len(there)
    assert sorted(served(one)) == sorted(there)
    assert one.shares.next() is None


def drained(one: Turns, clock: Clock, *clients: str, cost: float = 1.0) -> None:
    """Let a second pass, and then send the oldest sequence of each of these, whose turn costs so much."""
    clock.now += 1.0
    for client in clients:
        one.remove([*one.newest(client)][-1], sent=True)
        one.note_cost(client, cost)


async def test_the_wait_is_what_a_client_has_at_the_rate_at_which_it_drains() -> None:
    clock = Clock()
    one = turns(clock)
    for order in range(60):
        one.add(sequence(order, "ab"[order % 2]))
    assert one.wait_s("a") is None
    for second in range(20):
        drained(one, clock, "a")
        if second % 2:
            clock.now -= 1.0
            drained(one, clock, "b", cost=2.0)
    assert one.wait_s("a") == pytest.approx(11 / 1.0, rel=0.1)
    assert one.wait_s("b") == pytest.approx(21 / 0.5, rel=0.1)


async def test_the_wait_of_a_client_that_had_no_turn_yet_is_by_its_share() -> None:
    clock = Clock()
    one = turns(clock, weight=3.0)
    for order in range(40):
        one.add(sequence(order, "a"))
    for _ in range(10):
        drained(one, clock, "a")
    assert one.wait_s("new") == pytest.approx(2.0, rel=0.05)
    assert one.wait_s("heavy") == pytest.approx(1 + 1 / 3, rel=0.05)


async def test_the_wait_follows_at_once_when_other_clients_come_or_go() -> None:
    clock = Clock()
    one = turns(clock)
    for order in range(80):
        one.add(sequence(order, "a"))
    for _ in range(60):
        drained(one, clock, "a")
    assert one.wait_s("a") == pytest.approx(21.0, rel=0.05)
    come = [sequence(100 + order, "bcd"[order % 3]) for order in range(60)]
    for each in come:
        one.add(each)
    assert one.wait_s("a") == pytest.approx(21.0 + 3 * 20, rel=0.05)
    for each in come[3:]:
        one.remove(each, sent=False)
    assert one.wait_s("a") == pytest.approx(21.0 + 3, rel=0.05), "they have little in the queue"
    for each in come[:3]:
        one.remove(each, sent=False)
    assert one.wait_s("a") == pytest.approx(21.0, rel=0.05)


async def test_what_is_served_beside_a_client_with_little_in_the_queue_is_measured() -> None:
    """Another one, which has always one sequence there, gets every other turn."""
    clock = Clock()
    one = turns(clock)
    for order in range(100):
        one.add(sequence(order, "a"))
    for second in range(60):
        one.add(sequence(1000 + second, "b"))
        drained(one, clock, "ab"[second % 2])
        if not second % 2:
            one.remove(next(one.newest("b")), sent=False)
    one.add(sequence(2000, "b"))
    assert one.wait_s("a") == pytest.approx(71 / 0.5, rel=0.05)


async def test_what_ends_without_a_turn_does_not_count_as_drained() -> None:
    clock = Clock()
    one = turns(clock)
    for order in range(10):
        one.add(sequence(order))
    clock.now = 5.0
    for each in [*one.newest("")][:5]:
        one.remove(each, sent=False)
    assert one.wait_s("") is None


async def test_the_rates_of_clients_that_are_gone_are_forgotten() -> None:
    one = turns()
    for order in range(3 * MAX_IDLE):
        one.add(each := sequence(order, str(order)))
        one.remove(each, sent=True)
    assert len(one._measured) <= 2 * MAX_IDLE + 1


async def test_retry_after_has_a_most_and_a_least() -> None:
    world = World(slots=1, retry_after_s=2)
    loop = world.router._loop
    assert isinstance(loop, VirtualLoop)
    groups = [world.open() for _ in range(10)]
    charges = world.router._placement.charges
    assert charges.retry_after_s("tiny", "") == 2, "nothing was measured"
    world["a"].finish(groups[0].sequences[0].submit.stream)
    loop.hold(0.001)
    assert charges.retry_after_s("tiny", "") == 2
    loop.hold(1000.0)
    assert charges.retry_after_s("tiny", "") == MAX_RETRY_AFTER_S


class TestPlaces:
    def queue(self, bound: int, **weights: float) -> WaitQueue:
        return WaitQueue(bound, 60, lambda sequence: None, weight=lambda client: (weights or {}).get(client, 1.0))

    async def fill(self, queue: WaitQueue, clients: str) -> list[LiveSequence]:
        filled = [sequence(order, client) for order, client in enumerate(clients)]
        for each in filled:
            queue.add(each)
        return filled

    @pytest.mark.parametrize(
        ("clients", "new", "count", "displaced"),
        [
            ("aaaa", "b", 1, [3]),
            ("aaaa", "b", 2, [3, 2]),
            ("aaab", "b", 1, [2]),
            ("aabb", "b", 1, None),
            ("aabb", "c", 1, [1]),
            ("abcd", "e", 1, None),
            ("aaaa", "a", 1, None),
            ("aaaa", "b", 4, None),
            ("aaab", "b", 2, None),
        ],
    )
    async def test_the_newest_of_the_client_with_most_gives_way(
        self, clients: str, new: str, count: int, displaced: list[int] | None
    ) -> None:
        queue = self.queue(4)
        await self.fill(queue, clients)
        assert not queue.has_room(1)
        found = queue.to_displace(new, count)
        assert (None if found is None else [each.order for each in found]) == displaced

    async def test_a_weight_counts_as_so_many_clients(self) -> None:
        queue = self.queue(4, a=3.0)
        await self.fill(queue, "aaab")
        assert queue.to_displace("b", 1) is None
        assert queue.to_displace("c", 1) is None

    async def test_a_request_gives_way_whole_and_only_if_no_worker_has_a_part_of_it(self) -> None:
        queue = self.queue(4)
        begun, whole = group(2), group(2)
        begun.placed("a", "")
        for order, of in enumerate((whole, whole, begun, begun)):
            queue.add(sequence(order, "a", of))
        found = queue.to_displace("b", 1)
        assert found is not None
        assert sorted(each.order for each in found) == [0, 1]
        for each in found:
            queue.remove(each)
        queue.add(sequence(7, "b"))
        queue.add(sequence(8, "b"))
        assert queue.to_displace("c", 1) == [next(each for each in queue if each.order == 8)]


@pytest.mark.parametrize(
    ("source", "tokens"),
    [
        (TextInput(""), 0),
        (TextInput("123"), 1),
        (TextInput("1234"), 2),
        (TextInput("\u65e5\u672c"), 2),
        (TokensInput((1, 2, 3)), 3),
        (InfillInput("123", "1"), 2),
        (ChatInput((Message("user", "1234", reasoning="12", tool_calls=(ToolCall("i", "n", "{}"),)),), "1234567"), 6),
    ],
)
def test_the_tokens_of_a_prompt_are_estimated(source: Input, tokens: int) -> None:
    assert prompt_tokens(source) == tokens
