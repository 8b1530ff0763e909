"""Waiting until the workers of a server are gone or ready."""

from typing import Any

import httpx
import pytest

from cli.chaos.workers_watcher import WorkersWatcher
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


def watch(*answers: list[dict[str, Any]], model: str = "") -> WorkersWatcher:
    """Watch a server that gives these answers in turn. Time passes with each sleep."""
    polls = iter(answers)
    now = [0.0]

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"workers": next(polls)})

    def sleep(seconds: float) -> None:
        now[0] += seconds

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server")
    return WorkersWatcher(Administration(client), model, clock=lambda: now[0], sleep=sleep)


def test_all_must_be_ready_and_idle() -> None:
    polls = [[worker("a", "loading"), worker("b")], [worker("a"), worker("b", busy=1)], [worker("a"), worker("b")]]
    found = watch(*polls, [])
    found.wait_until_ready(5.0)
    assert found.workers() == [], "it polled three times"


def test_a_timeout_names_the_worker() -> None:
    with pytest.raises(CommandFailed, match=r"within 0\.1 s: a is loading"):
        watch(*[[worker("a", "loading"), worker("b")]] * 9).wait_until_ready(0.1)


def test_it_waits_until_no_worker_has_the_process_id() -> None:
    elsewhere = worker("c", pid=7) | {"address": "10.0.0.2:4711"}
    gone = [worker("a", "backoff", pid=None), worker("b", pid=8), elsewhere]
    found = watch(*[[worker("a", pid=7), worker("b", pid=8), elsewhere]] * 3, gone, [])
    found.wait_until_gone(7, 5.0)
    assert found.workers() == [], "it polled four times"


def test_a_process_that_does_not_end_is_named() -> None:
    with pytest.raises(CommandFailed, match=r"the end of process 7 within 0\.1 s"):
        watch(*[[worker("a", pid=7)]] * 9).wait_until_gone(7, 0.1)


def test_a_stopped_worker_is_ignored() -> None:
    watch([worker("a", "stopped"), worker("b")]).wait_until_ready(0.0)


def test_a_worker_that_is_given_up_ends_the_wait() -> None:
    with pytest.raises(CommandFailed, match="the server has given a up"):
        watch([worker("a", "given_up"), worker("b")]).wait_until_ready(5.0)


def test_active_workers_are_ready_and_of_this_machine() -> None:
    elsewhere = worker("d") | {"address": "10.0.0.2:4711"}
    (found,) = watch([worker("a", role="standby"), worker("b"), worker("c", "backoff"), elsewhere]).active()
    assert found["name"] == "b"


def test_workers_of_another_model_do_not_count() -> None:
    other = worker("z", "given_up", model="other")
    found = watch(*[[worker("a"), other]] * 2, model="m")
    found.wait_until_ready(5.0)
    assert [each["name"] for each in found.active()] == ["a"]
