"""Virtual token counters: clients that wait are served equally, and idle time is no credit."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.admission.fair_shares import MAX_IDLE, MOST_LEAD, FairShares

WEIGHTS = {"heavy": 3.0, "light": 0.5}


def shares() -> FairShares:
    return FairShares(lambda client: WEIGHTS.get(client, 1.0))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=300), st.integers(2, 5))
def test_those_that_wait_all_the_time_differ_by_one_turn_at_most(costs: list[int], count: int) -> None:
    fair = shares()
    clients = [*WEIGHTS, "a", "b", "c"][:count]
    for client in clients:
        fair.enter(client)
    served: Counter[str] = Counter()
    for cost in costs:
        turn = fair.next()
        assert turn is not None
        fair.charge(turn, cost)
        served[turn] += cost
    by_weight = [served[client] / WEIGHTS.get(client, 1.0) for client in clients]
    assert max(by_weight) - min(by_weight) <= max(costs) / min(WEIGHTS.values())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=100), st.integers(1, 1000))
def test_time_without_requests_is_no_credit(before: list[tuple[str, int]], gained: int) -> None:
    """Whatever happened before, a client that comes back does not get more than its share from then on."""
    fair = shares()
    for client, cost in before:
        fair.enter(client)
        fair.charge(client, cost)
        fair.leave(client)
    fair.enter("busy")
    fair.charge("busy", gained)
    fair.enter("back")
    served: Counter[str] = Counter()
    for _ in range(20):
        turn = fair.next()
        assert turn is not None
        fair.charge(turn, 10)
        served[turn] += 10
    assert served["back"] <= served["busy"] + 20


def test_what_a_client_got_beyond_its_share_counts_when_it_comes_back() -> None:
    fair = shares()
    fair.enter("a")
    fair.enter("b")
    fair.charge("a", 100)
    fair.leave("a")
    fair.charge("b", 10)
    fair.enter("a")
    assert [fair.next(), fair.next(without={"b"}), fair.next(without={"a", "b"})] == ["b", "a", None]


def test_a_client_that_has_only_running_requests_is_charged_from_the_level_of_the_others() -> None:
    fair = shares()
    fair.enter("a")
    fair.charge("a", 50)
    fair.charge("b", 10)
    fair.enter("b")
    assert fair.next() == "a"


def test_what_a_client_got_while_nobody_waited_is_no_debt() -> None:
    """Also of requests that have their turn without a wait."""
    fair = shares()
    for _ in range(100):
        fair.begin("busy")
        fair.charge("busy", 1000)
    fair.begin("idle")
    for client in ("idle", "busy"):
        fair.enter(client)
    turns = []
    for _ in range(4):
        chosen = fair.next()
        assert chosen is not None
        fair.charge(chosen, 10)
        turns.append(chosen)
    assert turns == ["idle", "busy", "idle", "busy"]


def test_a_turn_while_others_wait_forgives_nothing() -> None:
    fair = shares()
    for client in ("a", "b"):
        fair.enter(client)
    fair.charge("a", 100)
    fair.begin("a")
    fair.begin("b")
    assert fair.next() == "b"


def test_counters_without_a_meaning_are_dropped_at_the_bound() -> None:
    fair = shares()
    for number in range(MAX_IDLE):
        fair.enter(str(number))
        fair.leave(str(number))
    assert "0" in fair
    fair.enter("last")
    fair.leave("last")
    assert "last" in fair
    assert not any(str(number) in fair for number in range(MAX_IDLE))


def test_a_counter_that_means_something_is_kept_beyond_the_bound() -> None:
    fair = shares()
    fair.enter("busy")
    fair.enter("greedy")
    fair.charge("greedy", 1000)
    fair.leave("greedy")
    for number in range(2 * MAX_IDLE):
        fair.enter(str(number))
        fair.leave(str(number))
    assert "greedy" in fair
    fair.enter("greedy")
    assert fair.next() == "busy"


def test_counters_have_a_bound_whatever_they_mean() -> None:
    fair = shares()
    fair.enter("waits")
    for number in range(2 * MAX_IDLE):
        fair.begin(str(number))
        fair.charge(str(number), 1 + number)
    assert len(fair._counters) <= MAX_IDLE + 1
    assert "waits" in fair
    assert str(2 * MAX_IDLE - 1) in fair
    assert "0" not in fair


def test_what_was_served_elsewhere_is_charged_to_those_that_wait() -> None:
    fair = shares()
    for client in ("a", "heavy", "b"):
        fair.enter(client)
    fair.charge_elsewhere("heavy", 30.0)
    fair.charge_elsewhere("b", 20.0)
    fair.charge_elsewhere("nobody", 1000.0)
    fair.charge("a", 15.0)
    assert fair.next() == "heavy", "30 by its weight are 10"
    fair.charge("heavy", 16.0)
    assert fair.next() == "a"
    fair.charge("a", 6.0)
    assert fair.next() == "heavy"
    fair.charge("heavy", 100.0)
    assert fair.next() == "b"
    fair.charge("b", 0.5)
    fair.enter("nobody")
    fair.charge("b", 0.25)
    assert fair.next() == "nobody", "which was not charged"


def test_what_was_served_elsewhere_is_forgotten_beyond_some_intervals() -> None:
    fair = shares()
    fair.enter("a")
    fair.enter("b")
    for _ in range(100):
        fair.charge_elsewhere("b", 10.0)
    fair.charge("a", 10.0 * MOST_LEAD - 1)
    assert fair.next() == "a"
    fair.charge("a", 2.0)
    assert fair.next() == "b"


def test_what_was_served_is_taken_once() -> None:
    fair = shares()
    fair.charge("a", 1.0)
    assert fair.take_served() == {}, "it was served before anybody wanted to know"
    fair.charge("a", 2.0)
    fair.charge("a", -0.5)
    fair.charge_elsewhere("a", 7.0)
    assert fair.take_served() == {"a": 1.5}
    assert fair.take_served() == {}
    for number in range(MAX_IDLE + 10):
        fair.charge(str(number), 1.0)
    fair.charge("0", 1.0)
    served = fair.take_served()
    assert (len(served), served["0"]) == (MAX_IDLE, 2.0)
