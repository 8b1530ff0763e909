"""The order of requests by policy, and the bound on how long one is overtaken."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.scheduling import AGING_PRIORITY_S, AGING_TOKENS_PER_S, SchedulerPolicy, Urgency, may_preempt, rank

POLICIES = get_args(SchedulerPolicy)


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        ("fifo", (0.0, 9000, 5), (0.1, 1, -5)),
        ("shortest-uncached-first", (0.1, 10, 5), (0.0, 100, -5)),
        ("priority", (0.1, 9000, -1), (0.0, 1, 0)),
    ],
)
def test_each_policy_has_its_order(
    policy: SchedulerPolicy, first: tuple[float, int, int], second: tuple[float, int, int]
) -> None:
    assert rank(policy, *first) < rank(policy, *second)


@pytest.mark.parametrize(
    ("waiting", "running", "same_client", "expected"),
    [
        ((0, 9), (1, -9), False, True),
        ((1, -9), (0, 9), True, False),
        ((1, 0), (1, 0), True, False),
        ((1, -1), (1, 0), True, True),
        ((1, -1), (1, 0), False, False),
        ((1, 0), (1, -1), True, False),
    ],
)
def test_a_class_preempts_others_and_a_priority_those_of_its_client(
    waiting: tuple[int, int], running: tuple[int, int], same_client: bool, expected: bool
) -> None:
    assert may_preempt(Urgency(*waiting), Urgency(*running), same_client=same_client) is expected


@pytest.mark.parametrize("policy", POLICIES)
@given(
    arrived=st.floats(0, 1e6),
    uncached=st.integers(0, 1 << 20),
    later=st.floats(1e-3, 1e6),
    other=st.integers(0, 1 << 20),
    priorities=st.tuples(st.integers(-100, 100), st.integers(-100, 100)),
)
def test_a_request_is_overtaken_only_by_those_that_arrive_within_its_handicap(
    policy: SchedulerPolicy, arrived: float, uncached: int, later: float, other: int, priorities: tuple[int, int]
) -> None:
    own, others = priorities
    handicap = {
        "fifo": 0.0,
        "shortest-uncached-first": uncached / AGING_TOKENS_PER_S,
        "priority": AGING_PRIORITY_S * (own + 100),
    }[policy]
    if later > handicap + 1e-3:
        assert rank(policy, arrived, uncached, own) < rank(policy, arrived + later, other, others)
