"""What is read out of a server's log."""

import json
from typing import Any

from bench.server_log import failures, reasons


def lost(request: str, cause: str, choice: int = 0) -> str:
    return json.dumps({"event": "stream_lost", "request": request, "choice": choice, "worker": "w0", "cause": cause})


def test_reasons_of_restarts_are_counted_without_their_numbers() -> None:
    lines = [json.dumps({"event": "worker_restarts", "reason": f"no step for {n}.5 s"}) for n in (1, 20)]
    other: dict[str, Any] = {"event": "other", "text": "worker_restarts"}
    assert reasons([*lines, "garbage", '"worker_restarts" {', json.dumps(other)]) == {"no step for N s": 2}


def test_a_request_was_there_at_the_failures_of_its_unluckiest_sequence() -> None:
    lines = [lost("a", "died"), lost("a", "step_failed"), lost("b", "died"), lost("b", "killed", 1)]
    lines += [lost("c", "moved"), lost("c", "left")]
    assert failures(lines) == {"a": 2, "b": 1}, "two choices that met one failure each were not there at two"
