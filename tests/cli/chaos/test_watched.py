"""Waiting for the workers of a server."""

from typing import Any

import httpx
import pytest

from cli.chaos.watched import Watched
from cli.client.administration import Administration
from cli.config.errors import CommandFailed


def worker(
    name: str, state: str = "ready", role: str = "active", busy: int = 0, model: str = "m", pid: int | None = 1
) -> dict[str, Any]:
    return {
        "name": name,
        "model": model,
        "state": state,
        "role": role,
        "slots_active": busy,
        "queue_depth": 0,
        "reason": "",
        "address": None,
        "pid": pid,
    }


def watched(*answers: list[dict[str, Any]], model: str = "") -> Watched:
    """A server that says this, one look after the other, and time that passes with each sleep."""
    looks = iter(answers)
    now = [0.0]

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"workers": next(looks)})

    def sleep(seconds: float) -> None:
        now[0] += seconds

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server")
    return Watched(Administration(client), model, clock=lambda: now[0], sleep=sleep)


def test_all_must_be_ready_and_idle() -> None:
    looks = [[worker("a", "loading"), worker("b")], [worker("a"), worker("b", busy=1)], [worker("a"), worker("b")]]
    found = watched(*looks, [])
    found.wait_until_ready(5.0)
    assert found.workers() == [], "three looks were taken"


def test_a_wait_in_vain_says_for_whom() -> None:
    with pytest.raises(CommandFailed, match=r"within 0\.1 s: a is loading"):
        watched(*[[worker("a", "loading"), worker("b")]] * 9).wait_until_ready(0.1)


def test_a_process_that_ends_is_waited_for_until_it_is_listed_no_more() -> None:
    elsewhere = worker("c", pid=7) | {"address": "10.0.0.2:4711"}
    gone = [worker("a", "backoff", pid=None), worker("b", pid=8), elsewhere]
    found = watched(*[[worker("a", pid=7), worker("b", pid=8), elsewhere]] * 3, gone, [])
    found.wait_until_gone(7, 5.0)
    assert found.workers() == [], "four looks were taken"


def test_a_process_that_does_not_end_is_named() -> None:
    with pytest.raises(CommandFailed, match=r"the end of process 7 within 0\.1 s"):
        watched(*[[worker("a", pid=7)]] * 9).wait_until_gone(7, 0.1)


def test_one_that_was_told_to_stop_is_not_waited_for() -> None:
    watched([worker("a", "stopped"), worker("b")]).wait_until_ready(0.0)


def test_one_that_is_given_up_ends_the_wait() -> None:
    with pytest.raises(CommandFailed, match="the server has given a up"):
        watched([worker("a", "given_up"), worker("b")]).wait_until_ready(5.0)


def test_only_active_ready_workers_of_this_machine_can_be_hit() -> None:
    elsewhere = worker("d") | {"address": "10.0.0.2:4711"}
    (found,) = watched([worker("a", role="standby"), worker("b"), worker("c", "backoff"), elsewhere]).active()
    assert found["name"] == "b"


def test_workers_of_another_model_do_not_count() -> None:
    other = worker("z", "given_up", model="other")
    found = watched(*[[worker("a"), other]] * 2, model="m")
    found.wait_until_ready(5.0)
    assert [each["name"] for each in found.active()] == ["a"]
