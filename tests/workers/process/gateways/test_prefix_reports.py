"""Reports of held prefixes: each gateway gets every change once, and all that is held when it joins."""

from protocol.events import HeldPrefix
from workers.process.gateways.prefix_reports import PrefixReports

A, B = 0, 1
FIRST, SECOND = HeldPrefix(0, 40, (1, 2)), HeldPrefix(1, 50, (3,))
EMPTY = HeldPrefix(0)


def test_each_gateway_gets_each_change_once() -> None:
    reports = PrefixReports(["", ""])
    reports.note([FIRST])
    assert reports.take(A) == (FIRST,)
    reports.note([EMPTY, SECOND])
    assert [reports.take(gateway) for gateway in (A, B, A, B)] == [(EMPTY, SECOND), (EMPTY, SECOND), (), ()]


def test_a_gateway_that_joins_gets_what_is_held_then() -> None:
    reports = PrefixReports(["", ""])
    reports.note([FIRST, SECOND])
    reports.note([EMPTY])
    reports.take(B)
    reports.joined(B)
    assert reports.take(B) == (SECOND,)


def test_nothing_is_left_of_a_worker_that_is_gone() -> None:
    reports = PrefixReports(["", ""])
    reports.note([FIRST])
    reports.clear()
    reports.joined(A)
    assert [reports.take(gateway) for gateway in (A, B)] == [(), ()]


def test_gateways_whose_tenants_have_a_prefix_get_no_digests_which_they_could_not_recognize() -> None:
    reports = PrefixReports(["a/", "b/"])
    reports.note([FIRST])
    reports.joined(A)
    assert [reports.take(gateway) for gateway in (A, B)] == [(), ()]
