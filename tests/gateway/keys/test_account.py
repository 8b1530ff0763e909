"""Limits of one key: what is admitted, when the next request is, and what is counted."""

import pytest
from msgspec.structs import replace

from gateway.errors import RequestError
from gateway.keys.account import BUSY_RETRY_S, KeyAccount, Parts
from gateway.keys.allowance import Allowance
from gateway.keys.limit_state import LimitState
from gateway.keys.record import KeyLimits
from gateway.metrics.key_collector import KeyUse


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def retry_after(account: KeyAccount, tokens: int = 0) -> int:
    """The seconds that a refusal says."""
    with pytest.raises(RequestError) as refused:
        account.admit(tokens)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.retry_after_s is not None
    return refused.value.retry_after_s


def refusal_of(account: KeyAccount, tokens: int) -> str:
    """Admit requests until one is refused. Returns the text."""
    try:
        for _ in range(10):
            account.admit(tokens)
    except RequestError as refusal:
        return refusal.text
    raise AssertionError("nothing was refused")


def test_an_allowance_refills_evenly_up_to_a_minute() -> None:
    allowance = Allowance(60, 0.0)
    allowance.take(60, 0.0)
    assert [allowance.wait_s(amount, 0.0) for amount in (0, 1, 60)] == [0, 1, 60]
    assert allowance.left(30.0) == 30
    assert allowance.left(29.0) == 30, "a clock that goes back takes nothing"
    assert allowance.left(1000.0) == 60
    allowance.take(-10, 1000.0)
    assert allowance.left(1000.0) == 60
    allowance.take(90, 1000.0)
    assert (allowance.left(1000.0), allowance.wait_s(1, 1000.0)) == (-30, 31)


def test_a_resized_allowance_remembers_what_was_used() -> None:
    allowance = Allowance(60, 0.0)
    allowance.take(50, 0.0)
    allowance.resize(600, 0.0)
    assert allowance.left(0.0) == 550
    allowance.resize(100, 0.0)
    assert allowance.left(0.0) == 50


def test_a_lower_rate_makes_no_debt_of_what_was_used() -> None:
    """It would take 35 days to pay this one."""
    allowance = Allowance(1_000_000, 0.0)
    allowance.take(500_000, 0.0)
    allowance.resize(10, 0.0)
    assert allowance.wait_s(10, 0.0) == 60
    allowance.take(30, 0.0)
    allowance.resize(5, 0.0)
    assert allowance.left(0.0) == -30, "a debt stays one"


@pytest.mark.parametrize("per_minute", [1, 7, 60, 100_000])
def test_a_client_that_waits_as_told_is_admitted(clock: Clock, per_minute: int) -> None:
    account = KeyAccount(KeyLimits(requests_per_minute=per_minute), clock)
    for _ in range(per_minute):
        account.admit().settle()
    for _ in range(3):
        wait_s = retry_after(account)
        assert wait_s - 1 < 60 / per_minute <= wait_s
        clock.now += 60 / per_minute
        account.admit().settle()


def test_as_many_requests_run_at_once_as_the_limit_says(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(max_concurrent=2), clock)
    first, second = account.admit(), account.admit()
    assert retry_after(account) == BUSY_RETRY_S
    first.settle()
    first.settle()
    first.withdraw()
    assert account.use.live == 1
    account.admit()
    assert retry_after(account) == BUSY_RETRY_S
    second.settle()
    account.admit()


def test_tokens_are_reserved_and_what_was_not_used_is_given_back(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(tokens_per_minute=600), clock)
    first = account.admit(500)
    assert retry_after(account, 101) == 1
    assert retry_after(account, 600) == 50
    second = account.admit(100)
    assert retry_after(account, 1) == 1
    first.settle(20, 30)
    account.admit(450).settle(0, 450)
    assert retry_after(account, 1) == 1
    second.settle(100, 60)
    assert retry_after(account, 1) == 7, "60 more were used than were reserved"
    clock.now += 6.1
    account.admit(1)


def test_a_request_larger_than_a_minutes_tokens_waits_for_all_of_them(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(tokens_per_minute=60), clock)
    account.admit(5000).settle(0, 180)
    assert retry_after(account, 5000) == 180
    clock.now += 180
    account.admit(5000)


def test_a_request_that_the_gateway_cannot_serve_uses_nothing(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(requests_per_minute=1, tokens_per_minute=10, max_concurrent=1), clock)
    account.admit(10).withdraw()
    assert account.use == KeyUse(requests=0, refused=0, prompt_tokens=0, completion_tokens=0, live=0)
    account.admit(10)


def test_a_refusal_takes_nothing_and_is_counted(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(requests_per_minute=2, tokens_per_minute=60), clock)
    account.admit(30).settle(10, 5)
    for _ in range(3):
        assert retry_after(account, 60) == 15
    account.admit(45)
    with pytest.raises(RequestError, match="2 requests per minute"):
        account.check()
    assert account.use == KeyUse(requests=2, refused=4, prompt_tokens=10, completion_tokens=5, live=1)


def test_limits_change_under_live_requests(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(), clock)
    admissions = [account.admit(10**12) for _ in range(3)]
    account.update(KeyLimits(requests_per_minute=1, tokens_per_minute=10, max_concurrent=2))
    assert retry_after(account) == BUSY_RETRY_S
    for admission in admissions:
        admission.settle(1, 1)
    account.admit(4)
    account.update(KeyLimits())
    account.admit(10**12)
    assert account.use == KeyUse(requests=5, refused=1, prompt_tokens=3, completion_tokens=3, live=2)


def test_the_state_of_limits_is_what_is_left_of_them(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(requests_per_minute=60, tokens_per_minute=6000), clock)
    account.admit(100)
    clock.now += 0.25
    found = [each._replace(full_s=round(each.full_s, 6)) for each in account.states()]
    assert found == [LimitState(b"requests", 60, 59, 0.75), LimitState(b"tokens", 6000, 5925, 0.75)]
    account.admit(5925).settle(0, 12_000)
    assert account.states()[1].left == 0
    assert KeyAccount(KeyLimits(max_concurrent=1), clock).states() == []


def states(account: KeyAccount) -> list[tuple[int, int]]:
    return [(state.per_minute, state.left) for state in account.states()]


def test_what_a_share_loses_is_what_another_may_gain(clock: Clock) -> None:
    limits = KeyLimits(requests_per_minute=10, tokens_per_minute=100, max_concurrent=4)
    account = KeyAccount(limits, clock)
    account.admit(60).settle(60)
    assert account.lower_share(0.5) == pytest.approx((0.45, 0.2))
    assert states(account) == [(5, 4), (50, 20)]
    account.raise_share(1.0, Parts(0.1, 0.3))
    assert states(account) == [(10, 5), (100, 50)]
    account.raise_share(1.0, Parts(1.0, 1.0))
    assert states(account) == [(10, 10), (100, 100)], "no more than the limits"
    account.lower_share(0.0)
    assert states(account) == [(1, 1), (1, 1)], "one request is always possible"
    account.raise_share(0.5, Parts())
    account.update(replace(limits, requests_per_minute=20))
    assert [state.per_minute for state in account.states()] == [10, 50]
    account.lower_share(0.25)
    clock.now += 60
    account.admit()
    assert retry_after(account) == BUSY_RETRY_S


def test_a_share_leaves_a_debt_as_it_is(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(tokens_per_minute=60), clock)
    account.admit(60).settle(90)
    assert account.lower_share(0.5) == (0.0, 0.0)
    assert account.states()[0].per_minute == 30
    assert retry_after(account, 30) == 120, "a debt of 30 and a reservation of 30, at 30 per minute"


def test_a_request_that_is_larger_than_the_share_makes_a_debt_of_the_rest_at_once(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(tokens_per_minute=60), clock, share=0.5)
    admitted = account.admit(5000)
    clock.now += 60
    assert retry_after(account, 1) == 2, "of 60 tokens, 30 had come back"
    admitted.settle(10, 10)
    account.admit(30)


def test_an_account_joins_with_what_it_has_used(clock: Clock) -> None:
    limits = KeyLimits(requests_per_minute=10, tokens_per_minute=100)
    account = KeyAccount(limits, clock, share=0.5)
    assert states(account) == [(5, 5), (50, 50)]
    assert (account.share, account.leased) == (0.5, False)
    account.admit(20).settle(20)
    assert account.used() == pytest.approx((0.1, 0.2))
    account.join(0.8, Parts(0.7, 0.6))
    assert account.leased
    assert states(account) == [(8, 7), (80, 60)]
    account.join(0.9, Parts(0.9, 0.3))
    assert states(account) == [(9, 7), (90, 30)], "a lease that was lost gives nothing back"
    account.join(0.0, Parts())
    assert states(account) == [(1, 1), (1, 1)], "one request is always possible"


def test_an_account_that_used_more_than_there_was_joins_with_a_debt(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(tokens_per_minute=60), clock, share=0.5)
    account.admit(30).settle(30)
    account.join(0.0, Parts(0.0, -0.5))
    account.raise_share(0.5, Parts(0.0, 0.5))
    assert states(account) == [(30, 0)]
    assert retry_after(account, 1) == 2


def test_without_leases_an_account_has_its_own_limits(clock: Clock) -> None:
    account = KeyAccount(KeyLimits(requests_per_minute=10, tokens_per_minute=100), clock)
    account.join(0.5, Parts(0.5, 0.25))
    account.leave()
    assert states(account) == [(10, 10), (100, 50)]
    assert (account.share, account.leased) == (1.0, False)
    assert account.used() == (0.0, 0.0), "what was used then is no use of a share"


@pytest.mark.parametrize(
    ("limits", "text", "share"),
    [
        (KeyLimits(max_concurrent=4), "may have 4 requests at once (max_concurrent)", 2),
        (KeyLimits(requests_per_minute=4), "may send 4 requests per minute (requests_per_minute)", 2),
        (KeyLimits(tokens_per_minute=100), "may use 100 tokens per minute (tokens_per_minute)", 50),
    ],
    ids=["at once", "requests", "tokens"],
)
def test_a_refusal_names_the_limit_and_the_share_of_this_gateway(
    clock: Clock, limits: KeyLimits, text: str, share: int
) -> None:
    left = "; 10 are left, and the request may use 80" if limits.tokens_per_minute else ""
    for part, of_which in ((1.0, ""), (0.5, f", of which this gateway has {share}")):
        account = KeyAccount(limits, clock, part)
        account.admit(int(100 * part) - 10)
        assert refusal_of(account, 80) == f"this API key {text}{of_which}{left}"
