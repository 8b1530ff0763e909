"""Failures and reasons for restarts, from a server's log."""

import json
from typing import Any

from bench.soak_test.server_log import Failures, failures, reasons


def lost(request: str, cause: str, choice: int = 0) -> str:
    return json.dumps({"event": "stream_lost", "request": request, "choice": choice, "worker": "w0", "cause": cause})


def test_reasons_of_restarts_are_counted_without_their_numbers() -> None:
    lines = [json.dumps({"event": "worker_restarts", "reason": f"no step for {n}.5 s"}) for n in (1, 20)]
    other: dict[str, Any] = {"event": "other", "text": "worker_restarts"}
    assert reasons([*lines, "garbage", '"worker_restarts" {', json.dumps(other)]) == {"no step for N s": 2}


def test_each_sequence_of_a_request_has_its_own_failures() -> None:
    lines = [lost("a", "died"), lost("a", "step_failed"), lost("b", "died"), lost("b", "killed", 1)]
    lines += [lost("c", "moved"), lost("c", "left")]
    assert failures(lines) == {"a": [Failures(2, 0)], "b": [Failures(1, 0), Failures(0, 1)]}
    assert Failures(1, 2).total == 3
