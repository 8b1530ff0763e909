"""A gateway that is stopped (SIGSTOP) for longer than all its deadlines, and continued."""

import json
import os
import signal
import time
from typing import Any

import pytest

from tests.attacks.environment.gateway_process import Surroundings
from tests.attacks.environment.surrounded import Surrounded, surrounded
from tests.gateway.harness.serving import COMPLETION

DEADLINE_S = 2.5
STOPPED_S = 2.2 * DEADLINE_S
"""The attack is the time that passes, so it does."""
GIVEN = Surroundings(workers=2, rate=40.0, deadline_s=DEADLINE_S)
LONG = COMPLETION | {"seed": 7, "ignore_eos": True, "max_tokens": 60, "stream": True}


def suspend(gateway: Surrounded) -> None:
    os.kill(gateway.process.pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    os.kill(gateway.process.pid, signal.SIGCONT)


def stream(gateway: Surrounded, stop_at: int) -> str:
    """The text of a stream that must end well, with a suspension at one of its events."""
    pieces: list[str] = []
    ends: list[Any] = []
    with gateway.client.stream("POST", "/v1/completions", json=LONG) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                pieces.append(choice["text"])
                ends += [choice["finish_reason"]] if choice["finish_reason"] else []
                if len(pieces) == stop_at:
                    suspend(gateway)
    assert ends == ["length"]
    return "".join(pieces)


def test_streams_continue_and_no_worker_is_lost() -> None:
    with surrounded(GIVEN) as gateway:
        undisturbed = stream(gateway, 0)
        for _ in range(2):
            assert stream(gateway, 5) == undisturbed
        assert [(each["state"], each["incarnation"]) for each in gateway.workers()] == [("ready", 1)] * 2


@pytest.mark.exhaustive
def test_idle_workers_are_not_taken_for_silent_ones() -> None:
    with surrounded(GIVEN) as gateway:
        for _ in range(2):
            suspend(gateway)
            assert gateway.client.post("/v1/completions", json=COMPLETION).status_code == 200
        assert [(each["state"], each["incarnation"]) for each in gateway.workers()] == [("ready", 1)] * 2


@pytest.mark.exhaustive
def test_a_worker_that_starts_meanwhile_is_not_given_up() -> None:
    with surrounded(GIVEN) as gateway:
        for incarnation in range(2, 4):
            pid = gateway.workers()[0]["pid"]
            os.kill(pid, signal.SIGKILL)
            gateway.until(lambda: gateway.workers()[0]["pid"] not in (None, pid))  # noqa: B023
            suspend(gateway)
            gateway.ready()
            assert gateway.workers()[0]["incarnation"] == incarnation
